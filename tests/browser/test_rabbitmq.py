"""The page over RabbitMQ, served by a daemon that has no chat: all that happens does so in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.rig import Console, Gateway

# The same promises as over the embedded queue, kept here by the fixture below.
from tests.browser.test_conversation import (  # noqa: F401
    test_an_answer_is_written_as_it_comes_and_stays_after_a_reload,
    test_an_approval_is_given_by_its_button_and_another_denied,
    test_messages_wait_behind_a_turn_and_stop_ends_it,
)
from tests.browser.test_views import (
    test_a_parked_message_is_looked_at_tried_again_and_dropped,  # noqa: F401
)
from tests.support.broker import Broker
from tests.support.harness import Daemon, ask, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model

# Over the embedded queue `make test` has the same; what another daemon does is told by HTTP there, too.
pytestmark = pytest.mark.chaos


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> AsyncIterator[Gateway]:
    workspace = tmp_path_factory.mktemp("rabbit")
    async with ModelServer() as model:
        more = {"tools.policy.write": "ask", "facts.enabled": False, "media.max_mb": 1}
        config = with_model(model, **more, **on(broker, "browser"))
        # The first one gets all chats.
        async with Daemon(workspace, config=config) as worker, Daemon(workspace, config=config) as daemon:
            yield Gateway(daemon, model, workspace)
            assert (await status(daemon))["lanes"] == []
            assert worker.alive


async def test_lanes_of_another_daemon_are_live(console: Console) -> None:
    """List and health of the daemon that has none show them, as long as they run."""
    held = asyncio.Event()
    console.gateway.model.script.append(Reply(text="done there", held=held))
    asking = asyncio.create_task(ask(console.gateway.daemon, "web:apart", "web:a1", "what runs?", wait_s=300))
    await console.gateway.model.arrived(len(console.gateway.model.seen) + 1)
    page = await console.open("chats")
    await expect(page.locator(".chat-row", has_text="what runs?").locator(".live")).to_be_visible()
    await console.open("health")
    lanes = page.get_by_role("region", name="Lanes")
    await expect(lanes.get_by_role("link", name="web:apart")).to_be_visible()
    held.set()
    await asking
    await page.reload()

    await expect(page.get_by_text("No messages are waiting")).to_be_visible()
