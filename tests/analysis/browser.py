"""Chromium without a window, for the tests of pages.

Where there is none they are skipped; where CI has installed one (``MARS_BROWSER=required``) they
fail. ``MARS_NO_BROWSER`` says why CI could not install it, for the summary of skipped tests.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DESKTOP, PHONE = (1300, 900), (375, 700)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser that records what its console says and what it asks the network for."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        absent = "tries a page in a browser: install chromium and chromedriver (chromium-driver)"
        if os.environ.get("MARS_BROWSER") == "required":
            pytest.fail(absent)
        pytest.skip(os.environ.get("MARS_NO_BROWSER") or absent)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
        *("--no-first-run", "--force-prefers-reduced-motion", f"--user-data-dir={profile}"),
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield made
    finally:
        made.quit()


def resize(browser: Any, size: tuple[int, int]) -> None:
    """Make the page as large as on some device, whatever windows this system allows."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def requested(browser: Any) -> list[str]:
    """The addresses that the page asked for since this was last called."""
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
