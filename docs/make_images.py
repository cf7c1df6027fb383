"""Draws docs/images anew: ``python docs/make_images.py``, from a clone with Chromium installed.

The tutorial's code draws its own pictures. The others are of the demo: what it prints at 80 columns, and the first
screen of its page, light, dark and on a phone.
"""

from __future__ import annotations

import html
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
SCREENS = {
    "report.png": ("demo/report.html", 1200, 440, "light"),
    "report-dark.png": ("demo/report.html", 1200, 440, "dark"),
    "report-phone.png": ("demo/report.html", 390, 830, "light"),
    "terminal.png": ("terminal.html", 760, 462, "dark"),
}
"""Page, width, height and colours of each picture of a screen."""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #1e2029; color: #e6e6e6 }}
pre {{ margin: 18px 22px; font: 14px/1.35 "DejaVu Sans Mono", monospace }}
</style><pre>$ acls compare
{}</pre>"""


def main() -> None:
    """Run the tutorial and the demo in a temporary folder, and keep their pictures."""
    from tests.report.chromium import find

    chromium = find()
    if chromium is None:
        raise SystemExit("Chromium is missing: install it (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run((DOCS / "tutorial.md").read_text(encoding="utf-8"))
        run("```bash\nacls compare --out demo\n```")
        # Once more, as nothing is left to train: what it prints.
        words = [sys.executable, "-m", "acls", "compare", "--out", "demo", "--quiet"]
        environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(DOCS.parent)}
        told = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
        Path("terminal.html").write_text(TERMINAL.format(html.escape(told)), encoding="utf-8")
        screens(chromium)
        for name in (*TUTORIAL, *SCREENS):
            shutil.copy(name, DOCS / "images" / name)
        os.chdir(DOCS)


def screens(chromium: str) -> None:
    """Take the pictures of screens in this folder."""
    from playwright.sync_api import sync_playwright

    from tests.report.chromium import FLAGS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for name, (page, width, height, colours) in SCREENS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
            shown = context.new_page()
            shown.goto(Path(page).resolve().as_uri())
            shown.screenshot(path=name)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
