"""Lets ``python -m acls`` do what the ``acls`` command does."""

from acls.cli import main

raise SystemExit(main())
