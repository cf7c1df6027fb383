"""Where Chromium is; in CI it is installed if it is missing, elsewhere the tests that need it are skipped."""

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def find_or_install():
    """The path of Chromium, or None where it is missing outside of CI."""
    if (path := find()) or os.environ.get("CI", "").lower() not in ("true", "1"):
        return path
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        subprocess.run([*root, "apt-get", "--quiet", *words], check=True, env=environment, capture_output=True)
    return find()
