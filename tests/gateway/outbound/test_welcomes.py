"""Whoever was let in is told so once, in the chat where it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from channels.message import Outbound, read_outbound
from channels.pairing import Pairing
from gateway.outbound.adapters import PairingWelcomes
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import outbound
from tests.contracts.posts import collect
from tests.gateway.embedded_place import opened

BOX = outbound("telegram")


def approve(state: Path, who: str, kind: str, chat: str) -> None:
    pairing = Pairing(state)
    code = pairing.ask("telegram", who, kind=kind, name="Ada", message_id="t:1", chat_id=chat)  # type: ignore[arg-type]
    assert code is not None
    pairing.approve(code)


@asynccontextmanager
async def greeting(mailbox: EmbeddedMailbox, state: Path) -> AsyncIterator[asyncio.Event]:
    """Greet while the context is open; the event is set after each look, of which there are few."""
    looked = asyncio.Event()

    async def rest(seconds: float) -> None:
        assert seconds >= 2
        looked.set()
        await asyncio.sleep(0.01)

    task = asyncio.create_task(PairingWelcomes("telegram", state=state, mailbox=mailbox, sleep=rest).run())
    try:
        yield looked
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def told(mailbox: EmbeddedMailbox, count: int) -> list[Outbound]:
    async with mailbox.take(BOX) as letters:
        found = await collect(letters, count)
        for each in found:
            await mailbox.settle(each)
    return [read_outbound(each.body) for each in found]


async def test_who_is_approved_is_told_once_before_and_after_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with opened(tmp_path / "queue") as mailbox:
        # No daemon runs yet.
        approve(state, "100", "person", "100")
        async with greeting(mailbox, state) as looked:
            (first,) = await told(mailbox, 1)
            approve(state, "-5", "group", "-5:topic:7")
            (second,) = await told(mailbox, 1)
            # Ended before it is noted, it would be put again under the same id, as after a kill.
            looked.clear()
            await asyncio.wait_for(looked.wait(), 20)
        async with greeting(mailbox, state) as looked:
            await asyncio.wait_for(looked.wait(), 20)

        assert (await mailbox.depths()).get(BOX) is None or not (await mailbox.depths())[BOX].count
    assert (first.key, first.chat_id, first.kind) == ("telegram:100", "100", "proactive")
    assert (second.key, second.chat_id) == ("telegram:-5:topic:7", "-5:topic:7")
    assert "You are approved" in first.text
    assert "This group is approved" in second.text
    assert first.id.startswith("proactive:")
    assert first.id != second.id


async def test_who_only_asked_is_told_nothing(tmp_path: Path) -> None:
    pairing = Pairing(tmp_path)
    pairing.ask("telegram", "100", kind="person", name="Ada", message_id="t:1", chat_id="100")
    pairing.admit("telegram", "200", kind="person", name="Bob")

    assert pairing.to_greet("telegram") == []
