"""Run the ``acls`` command with ``python -m acls``."""

from acls.cli import main

raise SystemExit(main())
