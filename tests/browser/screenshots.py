"""Makes the pictures of docs/: ``python -m tests.browser.screenshots``."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from playwright.async_api import Page

from tests.browser import demo
from tests.browser.chromium import chromium
from tests.support.harness import ROOT, Daemon

DOCS = ROOT / "docs"
# File, view, width, height, colours.
SHOTS = (
    ("page.png", "chats/web%3Aoperations", 1280, 800, "light"),
    ("page-dark.png", "usage", 1280, 800, "dark"),
    ("page-phone.png", "chats/web%3Aoperations", 390, 760, "light"),
)


async def main() -> None:
    """Run a gateway over a workspace made up for it, and take each picture."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        await demo.fill(workspace)
        async with Daemon(workspace, anew=True) as daemon, chromium() as browser:
            for name, view, width, height, colours in SHOTS:
                context = await browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme="dark" if colours == "dark" else "light",
                )
                page = await context.new_page()
                await page.goto(f"{daemon.url}/#/{view}")
                await settled(page)
                await page.screenshot(path=DOCS / name)
                await context.close()


async def settled(page: Page) -> None:
    """Wait until the view is whole and nothing moves."""
    await page.locator("main h1").first.wait_for(state="attached")
    await page.locator("main .loading").first.wait_for(state="detached")
    await page.evaluate("document.activeElement?.blur()")
    await page.wait_for_timeout(500)


if __name__ == "__main__":
    asyncio.run(main())
