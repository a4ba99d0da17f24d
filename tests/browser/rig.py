"""A page of one gateway under test: used as a person does, and looked at for what must never happen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from playwright.async_api import BrowserContext, Locator, Page, Request, expect

from tests.support.harness import Daemon
from tests.support.model_server import ModelServer

# Whatever the browser refused by the page's policy is noted here, from before the page's first script on.
NOTES_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) =>
  window.violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
"""
DESKTOP, PHONE, LARGE = (1280, 800), (390, 844), (3840, 2160)
WITHIN_MS = 20_000


@dataclass
class Gateway:
    """A daemon with a model that answers as its messages ask for."""

    daemon: Daemon
    model: ModelServer
    workspace: Path

    @property
    def url(self) -> str:
        return self.daemon.url


@dataclass
class Console:
    """The page in one tab; ``faults`` holds what no test may see."""

    page: Page
    context: BrowserContext
    gateway: Gateway
    faults: list[str] = field(default_factory=list)

    async def begin(self) -> None:
        await self.context.add_init_script(NOTES_VIOLATIONS)
        host = urlsplit(self.gateway.url).netloc
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))

        def ask(request: Request) -> None:
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob") and parts.netloc != host:
                self.faults.append(f"another host: {request.url}")

        self.context.on("request", ask)

    async def end(self) -> None:
        """Fail where something went wrong meanwhile."""
        violations = await self.page.evaluate("window.violations ?? []")
        assert self.faults + violations == []

    async def open(self, path: str = "") -> Page:
        """Open a view: ``chats/web:ada``, each part as it is."""
        path, _, query = path.partition("?")
        parts = "/".join(quote(part, safe="") for part in path.split("/"))
        await self.page.goto(f"{self.gateway.url}/#/{parts}{'?' + query if query else ''}")
        return self.page

    async def say(self, text: str) -> None:
        box = self.page.get_by_role("textbox", name="Message")
        await box.fill(text)
        await box.press("Enter")

    def entry(self, text: str) -> Locator:
        return self.page.locator("article.entry", has_text=text)

    async def sees(self, text: str) -> Locator:
        """Wait until a text stands in the conversation."""
        found = self.entry(text).last
        await expect(found).to_be_visible(timeout=WITHIN_MS)
        return found
