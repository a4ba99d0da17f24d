"""A gateway with a token: the page asks for it once, and keeps none of it where a script could read it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.rig import Console, Gateway
from tests.support.harness import Daemon, command
from tests.support.model_server import ModelServer

TOKEN = "correct-horse-battery-staple"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with Daemon(tmp_path_factory.mktemp("token"), config={"http.token": TOKEN}) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def stranger(browser: Browser, daemon: Daemon) -> AsyncIterator[Console]:
    context = await browser.new_context()
    console = Console(await context.new_page(), context, Gateway(daemon, ModelServer(), daemon.workspace))
    await console.begin()
    yield console
    await console.end()
    await context.close()


async def test_the_token_is_asked_for_once(stranger: Console) -> None:
    """A wrong one is refused, the right one opens everything, also after a reload; to sign out ends it."""
    console, context = stranger, stranger.context
    page = await console.open("chats/web:ada")
    login = page.get_by_role("dialog", name="Sign in")
    await login.get_by_label("Token").fill("a wrong one")
    await page.keyboard.press("Enter")
    await expect(login.get_by_role("alert")).to_contain_text("does not know that token")
    await login.get_by_label("Token").fill(TOKEN)
    await page.keyboard.press("Enter")
    await expect(login).to_have_count(0)
    await console.say("hello")
    await console.sees("echo: hello")
    await page.reload()
    await console.sees("echo: hello")

    await expect(page.locator(".right")).to_have_count(0)
    await page.get_by_role("textbox", name="Message").fill("a secret draft")
    assert TOKEN not in await page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    await page.get_by_role("button", name="Sign out").click()
    await expect(login).to_be_visible()
    assert await page.evaluate("Object.keys(localStorage)") == []
    assert await context.cookies() == []
    assert "echo: hello" not in await page.content()
    await page.reload()
    await expect(login).to_be_visible()


async def test_a_token_that_may_only_look_is_told_so(stranger: Console, daemon: Daemon) -> None:
    """It sees everything, what it sends is refused with the reason; once it is revoked it sees nothing."""
    code, out = await command(daemon.workspace, "tokens", "add", "wall", "--right", "read")
    assert code == 0, out
    page = await stranger.open("chats/web:ada")
    await page.get_by_role("dialog", name="Sign in").get_by_label("Token").fill(out.split()[-1])
    await page.keyboard.press("Enter")
    await expect(page.locator(".right")).to_have_text("Read only")
    await stranger.say("hello")

    await expect(page.locator("article.pending .error")).to_contain_text("the right read")
    code, out = await command(daemon.workspace, "tokens", "revoke", "wall")
    assert code == 0, out
    await expect(page.get_by_role("dialog", name="Sign in")).to_contain_text("the token was revoked")
    await expect(page.locator("main")).to_be_hidden()
    await expect(page.locator(".rail")).to_be_hidden()
