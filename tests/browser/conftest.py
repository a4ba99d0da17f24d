"""One browser and one gateway for all tests of a worker; a tab of its own for each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser import demo
from tests.browser.chromium import chromium
from tests.browser.rig import DESKTOP, WITHIN_MS, Console, Gateway
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import with_model

expect.set_options(timeout=WITHIN_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder share one loop, as their browser does."""
    for item in items:
        if "tests/browser" in item.path.as_posix() and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.slow)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    workspace = tmp_path_factory.mktemp("console")
    await demo.fill(workspace)
    async with ModelServer() as model:
        config = with_model(
            model,
            **{
                "tools.policy.write": "ask",
                "facts.enabled": False,
                "limits.tokens_per_day": 2_000_000,
                "limits.model_tries": 2,
                "media.max_mb": 1,
                "agents": {"coder": {"description": "writes code"}},
            },
        )
        async with Daemon(workspace, config=config) as daemon:
            yield Gateway(daemon, model, workspace)


@pytest_asyncio.fixture(loop_scope="session")
async def console(browser: Browser, gateway: Gateway) -> AsyncIterator[Console]:
    # What a test that failed left to be answered is not for this one.
    gateway.model.script.clear()
    width, height = DESKTOP
    context = await browser.new_context(viewport={"width": width, "height": height})
    one = Console(await context.new_page(), context, gateway)
    await one.begin()
    try:
        yield one
        await one.end()
    finally:
        await context.close()
