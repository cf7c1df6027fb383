"""How large the report page of 200 runs is, and how fast it opens: seconds in Chromium beside an empty page's.

python benchmarks/page.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from acls.predictions import Predictions
from acls.report.page.build import write
from acls.report.page.sources import of_file
from tests.report.chromium import FLAGS, find

RUNS, EPOCHS, TRIES = 200, 200, 5
LARGEST_MB, LONGEST_SECONDS = 6.0, 2.0


def build(folder: Path) -> Path:
    random = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(10_000, 100, generator=random)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=random)[:, 0]
    Predictions(logits, labels, "logits").save(folder / "one.npz")
    one = of_file(folder / "one.npz", replicates=100)
    names = ("train/loss", "train/accuracy", "val/accuracy", "val/nll", "val/ece", "val/temperature", "val/logit_gap")
    history = tuple({"epoch": e, **dict.fromkeys(names, 1 / (e + 1.7))} for e in range(EPOCHS))
    runs = [
        replace(
            one, states=tuple(replace(s, method=f"method {i // 5}", seed=i % 5) for s in one.states), history=history
        )
        for i in range(RUNS)
    ]
    write(runs, folder / "page.html", ranked=[])
    (folder / "empty.html").write_text("<!doctype html><title>empty</title>")
    return folder / "page.html"


def seconds_to_open(browser, path: Path) -> float:
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(path.as_uri(), wait_until="load")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # painted
    taken = time.perf_counter() - began
    page.close()
    return taken


def main() -> int:
    chromium = find()
    if chromium is None:
        print("there is no Chromium on this machine: nothing measured")
        return 0
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = build(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        empty, full = [], []
        for _ in range(TRIES):
            empty.append(seconds_to_open(browser, path.with_name("empty.html")))
            full.append(seconds_to_open(browser, path))
        browser.close()
        megabytes = path.stat().st_size / 1e6
    print(f"{RUNS} runs of 100 classes, {EPOCHS} epochs: {megabytes:.2f} MB (at most {LARGEST_MB:g})")
    print(
        f"opens and is painted in {min(full):.2f} s (at most {LONGEST_SECONDS:g}), an empty page in {min(empty):.2f} s"
    )
    return int(megabytes > LARGEST_MB or min(full) > LONGEST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
