"""Reports in headless Chromium: they render and load nothing; by pointer, by keyboard, on paper and without script.

Not among the tests that need nothing but Python: ``make test-browser`` installs the driver and runs them.  They take
the Chromium of the system, or the one that the environment variable CHROMIUM names.
"""

import os
import shutil

import pytest
import report_pages as pages
from playwright.sync_api import sync_playwright

from pmm_mcmc.workbench.comparison.page import comparison_page
from pmm_mcmc.workbench.report import run_page

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
PAPER = {"width": 718, "height": 1000}  # A4 without its margins, in CSS pixels

# Lightness of text and ground as in WCAG 2, for every element with text of its own that can be seen.
CONTRAST = """() => {
  const linear = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c; }
    return [255, 255, 255];
  };
  const worst = {ratio: 99, text: ""};
  for (const e of document.querySelectorAll("body *:not(svg *)")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.tagName === "SCRIPT") continue;
    const a = light(parts(getComputedStyle(e).color)), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) Object.assign(worst, {ratio, text: e.textContent.slice(0, 40)});
  }
  return worst;
}"""


@pytest.fixture(scope="session")
def chromium():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "there is no Chromium: install the package chromium of the system, or set CHROMIUM to the program"
    with sync_playwright() as playwright:
        # Its sandbox cannot be had by root, as in most containers; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    every = {
        "good": run_page(pages.good(d=12, unstable=3)),
        "off": run_page(pages.off()),
        "nasty": run_page(pages.named(pages.NASTY), title=pages.NASTY[0]),
        "many": run_page(pages.good(d=3, chains=512, draws=40)),
        "ladder": run_page(pages.on_ladder()),
        "comparison": comparison_page(pages.stepped()),
    }
    for name, html in every.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return folder


@pytest.fixture
def show(chromium, files):
    """Open a report; at the end nothing may have been said on the console, or asked for."""
    opened, said, asked = [], [], []

    def run(name, viewport=WIDE, media=None, part="", **options):
        context = chromium.new_context(viewport=viewport, reduced_motion="reduce", **options)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        if media:
            page.emulate_media(media=media)
        page.goto(f"file://{files / name}.html{part}")
        opened.append(context)
        return page

    yield run
    for context in opened:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith((f"file://{files}/", "data:"))] == []


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("name", ["good", "off", "nasty", "many", "ladder", "comparison"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_in_any_width_and_light(show, files, name, viewport, scheme):
    page = show(name, viewport, color_scheme=scheme)
    assert page.locator("h1").is_visible() and page.locator(".verdict").is_visible()
    assert page.evaluate("window.harmed") is None
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 382) == (scheme == "light")
    tabs = page.get_by_role("tab")
    for i in range(tabs.count()):
        tabs.nth(i).click()
        assert fits(page), f"tab {i} is wider than the window"
        worst = page.evaluate(CONTRAST)
        assert worst["ratio"] >= 4.5, worst
        page.screenshot(path=files / f"{name}-{viewport['width']}-{scheme}-{i}.png", full_page=True)


def test_tabs_by_pointer_and_keyboard(show):
    page = show("good")
    tabs, panels = page.get_by_role("tab"), page.locator("[role=tabpanel]")
    assert tabs.count() == panels.count() == 4

    def selected():
        seen = [panels.nth(i).is_visible() for i in range(4)]
        assert [tabs.nth(i).get_attribute("aria-selected") == "true" for i in range(4)] == seen
        assert [tabs.nth(i).get_attribute("tabindex") == "0" for i in range(4)] == seen
        assert sum(seen) == 1
        return seen.index(True)

    assert selected() == 0
    tabs.nth(1).click()
    assert selected() == 1
    for key, where in (("ArrowRight", 2), ("End", 3), ("ArrowRight", 0), ("ArrowLeft", 3), ("Home", 0)):
        page.keyboard.press(key)
        assert selected() == where
        assert page.evaluate("document.activeElement.id") == f"tab-{where + 1}"
    page.keyboard.press("Tab")  # out of the list of tabs, into the part that is shown
    assert page.evaluate("document.activeElement.closest('[role=tabpanel]').id") == "part-1"


def test_an_address_can_name_a_part(show):
    page = show("good", part="#part-2")
    assert page.locator("#part-2").is_visible() and not page.locator("#part-1").is_visible()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_tooltips_by_pointer_and_keyboard(show, viewport):
    page = show("good", viewport)
    tip, terms = page.locator("#tooltip"), page.locator("#part-1 .term")
    assert terms.count() > 12 and tip.is_hidden()
    for i in range(terms.count()):
        term = terms.nth(i)
        term.focus()
        assert tip.is_visible()
        described = page.locator("#" + term.get_attribute("aria-describedby")).text_content()
        assert tip.text_content() == described and len(described) > 15
        box = tip.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= viewport["width"]
        assert box["y"] >= 0 and box["y"] + box["height"] <= viewport["height"]
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    terms.first.scroll_into_view_if_needed()
    terms.first.hover()
    assert tip.is_visible()
    page.mouse.move(1, 1)
    assert tip.is_hidden()


def test_tables_have_headers_that_are_read_aloud(show):
    page = show("good")
    table = page.get_by_role("table", name="Estimates", exact=True)
    assert table.get_by_role("columnheader").first.inner_text() == "parameter"
    assert table.get_by_role("rowheader").first.inner_text() == "a"
    page.get_by_role("tab", name="Figures").click()
    assert page.get_by_role("img", name="Traces").count() == 1


@pytest.mark.parametrize("name", ["good", "off", "comparison"])
def test_on_paper_all_parts_are_there(show, files, name):
    page = show(name, PAPER, media="print", color_scheme="dark")
    parts = page.locator(".part")
    assert all(parts.nth(i).is_visible() for i in range(parts.count()))
    assert page.locator("[role=tablist]").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(page.locator("details").nth(i).evaluate("e => e.open") for i in range(page.locator("details").count()))
    assert fits(page), "cut off at the right edge of the paper"
    page.screenshot(path=files / f"{name}-print.png", full_page=True)
    page.pdf(path=files / f"{name}.pdf", format="A4", margin=dict.fromkeys(("left", "right", "top", "bottom"), "1cm"))


def test_without_script_everything_can_be_read(show):
    page = show("good", java_script_enabled=False)
    parts = page.locator(".part")
    assert parts.count() == 4 and all(parts.nth(i).is_visible() for i in range(4))
    assert page.locator("[role=tablist]").is_hidden() and page.locator("h2").first.is_visible()
