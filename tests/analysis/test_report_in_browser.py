"""The report in a browser: it says nothing on the console, fetches nothing, and can be used."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from mars.analysis.report import write_report

from .browser import DESKTOP, PHONE, chromium, requested, resize


def test_without_a_browser_tests_are_skipped_saying_why_or_fail_where_ci_has_one(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MARS_BROWSER", raising=False)
    monkeypatch.setenv("MARS_NO_BROWSER", "apt-get has no chromium here")
    with pytest.raises(pytest.skip.Exception, match="apt-get has no chromium here"):
        chromium(tmp_path).__enter__()
    monkeypatch.setenv("MARS_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="install chromium"):
        chromium(tmp_path).__enter__()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def address(study, results, figures, tmp_path_factory):
    """The report of a finished embedded study, made up, with its own figures."""
    folder = tmp_path_factory.mktemp("page")
    return write_report(study, results, figures, folder / "index.html").as_uri()


@pytest.fixture
def page(browser, address):
    resize(browser, DESKTOP)
    browser.get(address)
    yield browser
    assert browser.get_log("browser") == []  # whatever was done with it


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


def test_every_figure_is_seen_whole_and_in_proportion(page, figures):
    pictures = page.execute_script(
        "return [...document.querySelectorAll('.plot img')].map(i => [i.naturalWidth,"
        " i.naturalHeight, i.getBoundingClientRect().width, i.getBoundingClientRect().height])"
    )
    assert len(pictures) == len(list(figures.glob("*.png")))
    for width, height, across, down in pictures:
        assert width > 400
        assert across > 200
        assert down / across == pytest.approx(height / width, rel=0.02)


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
    assert shown(page) == {"0.9"}
    slider.send_keys(Keys.ARROW_LEFT)
    assert shown(page) == {"0.95"}
    for tau in ("0.9", "0.8", "0.7", "0.6", "0.5"):
        slider.send_keys(Keys.ARROW_RIGHT)
        assert output.text == f"τ = {tau}"
        assert shown(page) == {tau}
    slider.send_keys(Keys.HOME)

    middle = slider.size["height"] / 2  # by mouse: its right end is the lowest threshold
    edge = slider.size["width"] / 2 - 4
    ActionChains(page).move_to_element_with_offset(slider, edge, middle / 4).click().perform()
    assert output.text == "τ = 0.5"
    assert shown(page) == {"0.5"}
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


def test_exponents_are_sorted_by_what_they_are(page):
    table = page.find_element(By.CSS_SELECTOR, "#table-training_overhead + .scroll table")
    heads = table.find_elements(By.CSS_SELECTOR, "thead th")
    at = [head.text for head in heads].index("FLOP")
    heads[at].find_element(By.TAG_NAME, "button").click()
    found = [float(cell) for cell in columns(table)[at] if cell != "–"]
    assert len(set(found)) > 1
    assert found == sorted(found)


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
