"""Chromium as the system's package installs it, driven over its own protocol.

Of its two programs the one without windows, which has the same engine and takes a third of the work.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

# As root it needs --no-sandbox; the others keep it from looking up hosts of its own.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")
CURE = "install chromium (apt-get install chromium-headless-shell), or run: make test"


def found() -> str:
    """Return where Chromium is."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert path is not None, CURE
    return path


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser of its own, with a profile that is thrown away."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found(), args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()
