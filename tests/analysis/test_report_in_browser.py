"""The report in a browser: it says nothing on the console, fetches nothing, and can be used."""

from __future__ import annotations

import struct
import zlib

import pytest

from mars.analysis.report import write_report
from mars.config import load_study

from . import synthetic
from .browser import DESKTOP, PHONE, chromium, requested, resize

By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    study = load_study(synthetic.ROOT / "config" / "quick.yaml")
    results = synthetic.make_results(folder / "results", study, documents=12)
    (folder / "frontier.png").write_bytes(png(2400, 900))
    return write_report(study, results, folder, folder / "index.html").as_uri()


def png(width: int, height: int) -> bytes:
    """A grey picture, as large as a figure."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xcc" * width) * height)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture
def page(browser, address):
    resize(browser, DESKTOP)
    browser.get(address)
    return browser


def columns(table) -> list[list[str]]:
    """The cells of a table, column by column."""
    script = "return [...arguments[0].tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    rows = table.parent.execute_script(script, table)
    return [list(column) for column in zip(*rows, strict=True)]


def pieces(browser) -> int:
    """Coloured pieces of text that can be seen."""
    script = "return [...document.querySelectorAll('.answer span')].filter(e => e.offsetParent)"
    return browser.execute_script(f"{script}.length")


def shown(browser) -> set[str]:
    script = (
        "return [...document.querySelectorAll('[data-tau]')].filter(e => e.offsetParent)"
        ".map(e => e.dataset.tau)"
    )
    return set(browser.execute_script(script))


def test_it_asks_for_nothing_and_has_nothing_to_say(browser, address):
    requested(browser)
    browser.get_log("browser")
    resize(browser, DESKTOP)
    browser.get(address)
    beyond = [url for url in requested(browser) if not url.startswith("data:")]
    assert beyond == [address]
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_itself_does_not_scroll_sideways(page, size):
    resize(page, size)
    wide = page.execute_script(
        "const edge = document.documentElement.clientWidth;"
        "const boxed = e => e.closest('.scroll, .plot, pre, .skip, .hidden');"
        "return [document.documentElement.scrollWidth - edge,"
        " [...document.querySelectorAll('body *')]"
        ".filter(e => !boxed(e) && e.getBoundingClientRect().right > edge + 1)"
        ".map(e => e.outerHTML.slice(0, 80))]"
    )
    assert wide == [0, []]
    size_of = "return parseFloat(getComputedStyle(document.querySelector(arguments[0])).fontSize)"
    assert page.execute_script(size_of, "main p, main li") >= 14
    assert page.execute_script(size_of, "td") >= 12


def test_the_slider_shows_the_same_documents_at_another_threshold(page):
    slider = page.find_element(By.ID, "tau")
    output = page.find_element(By.TAG_NAME, "output")
    documents = [e.text for e in page.find_elements(By.CSS_SELECTOR, ".example h4")]
    assert documents
    assert output.text == "τ = 0.95"
    assert shown(page) == {"0.95"}
    few = pieces(page)

    slider.send_keys(Keys.HOME)  # by keyboard
    assert slider.get_attribute("aria-valuetext") == output.text == "τ = 1"
    assert shown(page) == {"1"}
    assert pieces(page) > few
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shown(page) == {"0.7"}
    slider.send_keys(Keys.ARROW_LEFT)
    assert shown(page) == {"0.95"}

    middle = slider.size["height"] / 2  # by mouse: its right end is the lowest threshold
    from selenium.webdriver import ActionChains

    edge = slider.size["width"] / 2 - 4
    ActionChains(page).move_to_element_with_offset(slider, edge, middle / 4).click().perform()
    assert output.text == "τ = 0.7"
    assert shown(page) == {"0.7"}
    assert [e.text for e in page.find_elements(By.CSS_SELECTOR, ".example h4")] == documents

    page.find_elements(By.CSS_SELECTOR, ".ticks button")[0].click()
    assert output.text == "τ = 1"
    assert [e.text for e in page.find_elements(By.CSS_SELECTOR, ".ticks [aria-pressed=true]")] == [
        "1"
    ]


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace("−", "-")) for cell in cells]


def test_a_table_is_sorted_by_mouse_and_by_keyboard(page):
    table = page.find_element(By.CSS_SELECTOR, "#table-table2 + .scroll table")
    heads = table.find_elements(By.CSS_SELECTOR, "thead th")
    names = [head.text for head in heads]
    before = columns(table)
    at = names.index("IFEval")
    assert before[at] != sorted(before[at])

    button = heads[at].find_element(By.TAG_NAME, "button")
    button.click()
    assert heads[at].get_attribute("aria-sort") == "ascending"
    assert numbers(columns(table)[at]) == sorted(numbers(before[at]))
    button.send_keys(Keys.ENTER)
    assert heads[at].get_attribute("aria-sort") == "descending"
    assert numbers(columns(table)[at]) == sorted(numbers(before[at]), reverse=True)
    button.send_keys(Keys.SPACE)
    assert heads[at].get_attribute("aria-sort") is None
    assert columns(table) == before

    at = names.index("B")  # AR has none: what is missing stays last, whichever way
    some = sorted(numbers([cell for cell in before[at] if cell != "–"]))
    none = ["–"] * before[at].count("–")
    assert none
    for found in (some, some[::-1]):
        heads[at].find_element(By.TAG_NAME, "button").click()
        assert columns(table)[at] == [f"{value:g}" for value in found] + none
    assert [h.get_attribute("aria-sort") for h in heads].count("descending") == 1

    heads[0].find_element(By.TAG_NAME, "button").click()
    assert columns(table)[0] == sorted(before[0])
    assert heads[at].get_attribute("aria-sort") is None


def test_without_scripts_one_threshold_and_every_table_can_be_read(page, address):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(address)
        assert not page.find_element(By.ID, "tau").is_displayed()
        answers = page.find_elements(By.CSS_SELECTOR, ".answer")
        assert {e.find_element(By.XPATH, "..").get_attribute("data-tau") for e in answers if
                e.is_displayed()} == {"0.95"}  # fmt: skip
        assert page.find_element(By.CSS_SELECTOR, "#table-glance td").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
