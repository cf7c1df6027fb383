"""Draws docs/images anew: ``python docs/make_images.py`` runs the tutorial's code and keeps what it draws."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from pages.runner import run

DOCS = Path(__file__).resolve().parent
PICTURES = ("before.png", "after.png", "both.png")


def main() -> None:
    """Run the tutorial in a temporary folder and copy its pictures."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(page)
        for name in PICTURES:
            shutil.copy(name, DOCS / "images" / name)
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
