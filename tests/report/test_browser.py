"""The page in a real browser, without a network."""

import re
from dataclasses import replace

import numpy as np
import pytest

from acls.metrics import Suite
from acls.predictions import Predictions
from acls.report.page.build import write
from acls.report.page.diagram_data import OFFERED
from acls.report.page.sources import of_file, of_run
from acls.report.page.subjects import named
from acls.results.details import Details
from tests.report.chromium import FLAGS, find_or_install
from tests.report.made import predictions, run, subject

pytestmark = pytest.mark.xdist_group("chromium")

HOSTILE = "<script>window.hacked = 1</script>"
TRAP = '"><img src="x" onerror="window.hacked = 2">'


@pytest.fixture(scope="module")
def browser():
    path = find_or_install()
    if path is None:
        pytest.skip("there is no Chromium on this machine: install Debian's chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """Two seeds of a run-like network with curves and pictures, and two files, one with names that bite."""
    folder = tmp_path_factory.mktemp("page")
    first = of_run(run(folder / "run"), replicates=10)
    calm = subject(folder, name="calm.npz", n=800, sharpness=1.0, title="calm")
    images = np.random.default_rng(0).integers(0, 255, (800, 8, 8), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    hostile = subject(folder, name="hot.npz", n=800, sharpness=3.0, images=folder / "images.npy", title=HOSTILE)
    hostile = replace(hostile, names=(TRAP, HOSTILE, "three", "four"), source=f"{TRAP}.npz")
    # One protocol for all, so that they stand in one table.
    first = replace(first, states=tuple(replace(state, protocol=calm.as_is.protocol) for state in first.states))
    return [first, named(first, seed=2), calm, hostile]


@pytest.fixture(scope="module")
def written(subjects, tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "report <b>.html"
    write(subjects, path, title=f"A title {HOSTILE}")
    return path


@pytest.fixture
def open_page(browser, written):
    """Open the page; afterwards there must have been no error and no request beyond the file itself."""
    heard, contexts = [], []

    def open_it(**settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: heard.append(request.url) if request.url != written.as_uri() else None)
        page.goto(written.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert [line for line in heard if not line.startswith("data:image/png")] == []


def column(page, title):
    titles = page.locator("#results table").first.locator("th").all_inner_texts()
    at = [text.strip() for text in titles].index(title)
    return page.locator("#results table").first.locator(f"tbody td:nth-child({at + 1})").all_inner_texts()


def chosen_ece(page):
    return page.locator("#numbers tr").first.locator("td").first.inner_text()


def choose(page, method, **selects):
    page.select_option("#method", label=method)
    for name, label in selects.items():
        page.select_option(f"#{name}", label=label)


def test_the_verdict_comes_first_and_in_sentences(open_page):
    page = open_page()
    first = page.locator("#verdict .answer")
    assert "tested on different samples, so they are not compared" in first.inner_text()
    assert first.bounding_box()["y"] < 300


def test_the_first_screen_of_a_phone_shows_the_ece_of_every_method_the_best_first(open_page):
    page = open_page(viewport={"width": 390, "height": 844})
    eces = [float(text) for text in page.locator(".overview tbody tr td:nth-child(3)").all_inner_texts()]
    assert len(eces) >= 2
    assert eces == sorted(eces)
    assert page.locator(".overview tbody tr").first.bounding_box()["y"] < 500
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_table_sorts_by_pointer_and_by_keyboard(open_page):
    page = open_page()
    head = page.locator("#results table").first.get_by_role("button", name="ECE %", exact=True)
    head.click()
    values = [float(text.split()[0]) for text in column(page, "ECE %")]
    assert len(values) > 4
    assert values == sorted(values)
    head.press("Enter")
    values = [float(text.split()[0]) for text in column(page, "ECE %")]
    assert values == sorted(values, reverse=True)
    assert page.locator("#results th[aria-sort=descending]").count() == 1
    page.locator("#results table").first.get_by_role("button", name="method").click()
    names = column(page, "method")
    assert names == sorted(names, key=str.lower)


def test_hovering_a_bar_tells_its_count_and_interval(open_page):
    page = open_page()
    choose(page, "calm")
    p = predictions(n=800, sharpness=1.0)
    suite = Suite.of(p.scores, p.labels)
    count = suite.bins.samples[suite.bins.samples > 0]
    bars = page.locator("#diagram .slot")
    assert bars.count() == len(count)
    bars.last.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    told = tip.inner_text()
    assert f"n = {int(count[-1]):,}" in told
    accuracy = float(suite.bins.right[-1] / suite.bins.samples[-1])
    assert re.search(rf"accuracy {100 * accuracy:.2f} % \(\d+\.\d % to \d+\.\d %\)", told)
    page.mouse.move(5, 5)
    assert tip.is_hidden()


def test_bars_are_reached_by_keyboard(open_page):
    page = open_page()
    page.locator("#diagram .slot").first.focus()
    first = page.locator("#tip").inner_text()
    page.keyboard.press("ArrowRight")
    second = page.locator("#tip").inner_text()
    assert first != second
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("confidence")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


@pytest.mark.parametrize("scheme", ["width", "mass"])
def test_every_choice_of_bins_shows_the_packages_own_error(open_page, subjects, scheme):
    page = open_page()
    choose(page, "calm")
    page.check(f"input[value={scheme}]")
    p = predictions(n=800, sharpness=1.0)
    for bins in OFFERED:
        page.select_option("#bins", str(bins))
        suite = Suite.of(p.scores, p.labels, bins=bins)
        expected = suite.bins.ece if scheme == "width" else suite.summary()["aece"]
        assert chosen_ece(page) == f"{100 * expected:.2f} %"


def test_choosing_method_seed_and_calibration_changes_what_is_shown(open_page, subjects):
    page = open_page()
    shown = {}
    for method, state in (("calm", "as it is"), ("calm", "after Temperature"), (HOSTILE, "as it is")):
        choose(page, method, state=state)
        shown[method, state] = chosen_ece(page)
        caption = page.locator("#numbers caption").inner_text()
        assert caption == f"{method}, {state}"
    for (method, state), text in shown.items():
        one = next(subject for subject in subjects if subject.method == method)
        found = one.states[state != "as it is"]
        assert text == f"{100 * found.result['ece']:.2f} %"
    page.select_option("#method", label="ACLS(margin=6.0)")
    assert page.locator("#seed").is_visible()
    page.select_option("#seed", label="2")
    assert page.locator("#numbers caption").inner_text().startswith("ACLS(margin=6.0), seed 2")


def test_a_second_network_is_drawn_over_the_first(open_page):
    page = open_page()
    assert page.locator("#diagram .second").count() == 0
    page.select_option("#other", label="calm, as it is")
    assert page.locator("#diagram .second").count() == 1
    assert "ECE of calm, as it is" in page.locator("#numbers").inner_text()


def test_classes_sort_and_show_their_own_diagram(open_page):
    page = open_page()
    choose(page, "ACLS(margin=6.0)")
    before = page.locator("#class-caption").inner_text()
    page.locator("#class-table").get_by_role("button", name="digit 7").click()
    assert page.locator("#class-caption").inner_text().startswith("digit 7: classwise ECE")
    assert before.startswith("digit 0")
    page.locator("#class-table").get_by_role("button", name="classwise ECE %").click()
    values = [float(text) for text in page.locator("#class-table tbody td:nth-child(2)").all_inner_texts()]
    assert values == sorted(values)


def test_mistakes_have_their_pictures(open_page, subjects):
    page = open_page()
    choose(page, HOSTILE)
    images = page.locator("#cards img")
    assert images.count() == len(subjects[3].mistakes)
    assert page.evaluate("[...document.querySelectorAll('#cards img')].every((one) => one.naturalWidth === 8)")
    assert "predicted" in images.first.get_attribute("alt")


def test_training_curves_tell_their_values(open_page):
    page = open_page()
    charts = page.locator("#charts svg")
    assert charts.count() == 5
    charts.first.hover()
    assert re.match(r"epoch \d\nECE, validation 0\.\d+", page.locator("#tip").inner_text())
    charts.first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tip").is_visible()
    choose(page, "calm")
    assert page.locator("#training").is_hidden()


def test_configuration_and_versions_are_there(open_page):
    page = open_page()
    page.get_by_text("Settings").click()
    assert "digits" in page.locator("#settings").inner_text()
    page.get_by_text("Versions and machine").click()
    assert '"torch": "2.0"' in page.locator("#environment").inner_text()


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_follow_the_reader_and_the_button(open_page, scheme, dark):
    page = open_page(color_scheme=scheme)

    def brightness():
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    assert (brightness() < 80) == dark
    page.click("#theme")
    assert (brightness() < 80) != dark
    page.click("#theme")
    assert (brightness() < 80) == dark


def test_names_that_bite_are_text(open_page):
    page = open_page()
    choose(page, HOSTILE)
    page.locator("#class-table").get_by_role("button", name=TRAP).click()
    assert page.locator("#class-caption").inner_text().startswith(TRAP)
    assert page.locator("#source").inner_text() == f"{TRAP}.npz"
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[onerror]").count() == 0


def test_an_injected_script_would_not_run(browser, written, tmp_path):
    """Should escaping ever fail, the policy stops what got through, and it cannot load anything."""
    text = written.read_text()
    attack = '<script>window.hacked = 3</script><img src="http://127.0.0.1:9/x.png" onerror="window.hacked = 4">'
    (tmp_path / "bad.html").write_text(text.replace("<main>", f"<main>{attack}", 1))
    page = browser.new_page()
    answered = []
    page.on("response", lambda response: answered.append(response.url))
    page.goto((tmp_path / "bad.html").as_uri())
    assert page.evaluate("window.hacked") is None
    assert page.locator("#diagram svg").count() == 1
    assert not [url for url in answered if url.startswith("http")]
    page.close()


def test_it_fits_a_phone(open_page):
    page = open_page(viewport={"width": 380, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")


def test_it_prints_with_everything_unfolded(open_page):
    page = open_page()
    closed = page.locator("details:not([open])").count()
    assert closed
    count = "document.querySelectorAll('details:not([open])').length"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.left = {count} }})")
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate("window.left") == 0
    assert page.locator("details:not([open])").count() == closed
    page.emulate_media(media="print")
    assert page.locator(".controls").is_hidden()


def test_every_control_has_a_name_and_every_picture_a_text(open_page):
    page = open_page()
    unnamed = page.evaluate(
        "[...document.querySelectorAll('select, input, button')]"
        ".filter((one) => !(one.labels?.length || one.textContent.trim() || one.ariaLabel)).length"
    )
    assert unnamed == 0
    assert page.evaluate("[...document.querySelectorAll('svg')].every((one) => one.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('img')].every((one) => one.alt)")


def test_without_scripts_the_verdict_and_the_tables_are_there(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator("#verdict .answer").is_visible()
    assert page.locator("#verdict li").count() >= 2
    assert page.locator("#results tbody tr").count() >= 6
    assert page.locator("#results table").first.is_visible()
    assert page.locator("#reliability").is_hidden()


def test_networks_without_outputs_show_their_numbers(browser, subjects, tmp_path):
    without = replace(subjects[2].as_is.result, suite=None, details=Details())
    bare = replace(subjects[2], states=(replace(subjects[2].as_is, result=without),))
    write([bare], tmp_path / "bare.html", ranked=[])
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "bare.html").as_uri())
    assert "not available" in page.locator("#diagram").inner_text()
    assert "ECE %" in page.locator("#numbers").inner_text()
    assert errors == []
    page.close()


def test_pixels_are_told_apart_from_samples(browser, tmp_path):
    import torch

    p = predictions(n=600, image=torch.arange(600) // 60)
    p.save(tmp_path / "pixels.npz")
    assert Predictions.load(tmp_path / "pixels.npz").image is not None
    write([of_file(tmp_path / "pixels.npz")], tmp_path / "pixels.html")
    page = browser.new_page()
    page.goto((tmp_path / "pixels.html").as_uri())
    assert "over images" in page.locator("#note").inner_text()
    assert "image" in page.locator("#cards li").first.inner_text()
    page.close()
