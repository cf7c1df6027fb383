"""Draws docs/images anew: ``python docs/make_images.py``, from a clone with Chromium installed.

The tutorial's code draws its own pictures; the picture of the report page is the first screen of the demo's page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages.runner import run

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))
TUTORIAL = ("before.png", "after.png", "both.png")
SCREEN = "1200,440"


def main() -> None:
    """Run the tutorial and the demo in a temporary folder, and keep their pictures."""
    from tests.report.chromium import FLAGS, find

    chromium = find()
    if chromium is None:
        raise SystemExit("Chromium is missing: install it (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run((DOCS / "tutorial.md").read_text(encoding="utf-8"))
        run("```bash\nacls compare --out demo\n```")
        screenshot = (f"--screenshot={Path(folder, 'report.png')}", f"--window-size={SCREEN}", "--hide-scrollbars")
        page = Path(folder, "demo", "report.html").as_uri()
        subprocess.run([chromium, "--headless", *FLAGS, *screenshot, page], check=True, capture_output=True)
        for name in (*TUTORIAL, "report.png"):
            shutil.copy(name, DOCS / "images" / name)
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
