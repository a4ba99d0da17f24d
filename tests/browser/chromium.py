"""Chromium as the system's package installs it, driven over its own protocol."""

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
CURE = "install chromium (apt-get install chromium), or run: make test"


def found() -> str:
    """Return where Chromium is."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
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
