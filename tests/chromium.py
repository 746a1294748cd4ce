"""A Chromium for tests of pages; `tools/apt-install` installs it for the targets that need it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium")


@contextmanager
def launched() -> Iterator[Any]:
    """A browser that shows no window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
