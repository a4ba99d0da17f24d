"""What jobs tell their chats: nothing where there is nothing to say, and the first failure in a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound
from gateway.dispatch.control_order import WatchOrder
from gateway.dispatch.events import read_event
from gateway.dispatch.jobs import Jobs
from gateway.dispatch.worker import DispatchRules
from session.context.request import Request, is_quiet
from session.errors import ModelRefused
from session.transcript.key import SessionKey
from session.turn.turn import Reply
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig, letter

ABOUT = {"name": "news", "missed": "all"}
JOB: dict[str, Any] = {"source": "cron", "cron_job_id": "j", "meta": {"job": ABOUT}}


@asynccontextmanager
async def rig(folder: Path, *steps: Any) -> AsyncIterator[Rig]:
    built = Rig(folder, Script(steps), DispatchRules())
    built.more["jobs"] = Jobs(folder / "state", clock=built.clock)
    async with built.open():
        yield built


def run(number: int, **more: Any) -> Inbound:
    return letter("look", f"cron:j@2027-01-0{number}T00:00:00Z", **{**JOB, **more})


async def put(r: Rig, inbound: Inbound) -> None:
    await r.intake.accept(inbound)


# -- nothing to say ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "heartbeat", "quiet"),
    [
        ("NO_REPLY", False, True),
        (" **no_reply**.\n", False, True),
        ("`HEARTBEAT_OK`", False, True),
        ("NO_REPLY, since all is well", False, False),
        ("There is NO_REPLY", True, False),
        ("HEARTBEAT_OK: all is well", False, False),
        ("HEARTBEAT_OK: all is well", True, True),
        ("All is well. HEARTBEAT_OK", True, True),
        ("HEARTBEAT_OK" + "x" * 300, True, True),
        ("HEARTBEAT_OK" + "x" * 301, True, False),
        ("I would say HEARTBEAT_OK, but the roof leaks", True, False),
        ("", True, False),
        ("NO REPLY", True, False),
    ],
)
def test_the_word_alone_is_not_sent(text: str, heartbeat: bool, quiet: bool) -> None:
    asked = Request("cron:j@x", SessionKey("telegram:1"), "", source="cron", heartbeat=heartbeat)
    person = Request("m", SessionKey("telegram:1"), "")
    own = Request("cron:j@x", SessionKey("cron:j"), "", source="cron", heartbeat=heartbeat)

    assert is_quiet(asked, text) is quiet
    assert not is_quiet(person, text)
    assert not is_quiet(own, text)


async def test_an_answer_that_is_not_sent_is_not_sent_when_its_letter_comes_again(tmp_path: Path) -> None:
    """Not by the transcript, nor after its session ended; it was asked once, and is told to no client."""
    async with rig(tmp_path, "NO_REPLY") as r:
        await put(r, run(1))
        await r.settled()
        await put(r, run(1))
        await r.settled()
        assert (await r.store.look(ADA)).told() == []
        await r.put("/new", "m1")
        await r.put("hello", "m2")
        await put(r, run(1))
        await r.put("bye", "m3")
        texts = await r.texts(3)
        await r.settled()
        told = (await r.store.look(ADA)).told()

    assert [text.partition(":")[0] for text in texts[1:]] == ["script", "script"]
    assert r.unread == 0
    assert len(r.model.prompts) == 3
    assert "NO_REPLY" not in str(told)


async def test_nobody_looks_on_while_a_job_is_answered(tmp_path: Path) -> None:
    """Its pieces are shown to nobody: they might be the word. Those of people are shown as ever."""
    async with rig(tmp_path) as r, r.mailbox.listen("events") as bodies:
        await r.mailbox.tell("control", 0, WatchOrder(id="w", slots="all", for_s=60).to_bytes())
        await r.put("hello", "m0")
        seen: set[tuple[str | None, str]] = set()
        async with asyncio.timeout(60):
            async for body in bodies:
                event = read_event(body)
                assert event is not None
                if (event.in_reply_to, event.kind) == ("m0", "reply"):
                    # Whoever watches is known by now.
                    await put(r, run(1))
                    await r.put("hello", "m1")
                seen.add((event.in_reply_to, event.kind))
                if (event.in_reply_to, event.kind) == ("m1", "reply"):
                    break

    assert {("m1", "started"), ("m1", "delta")} <= seen
    assert {kind for who, kind in seen if who == run(1).id} == {"reply"}


# -- failures ------------------------------------------------------------------------------------------


async def test_what_nobody_is_told_is_a_success_as_well(tmp_path: Path) -> None:
    no = ModelRefused("no")
    async with rig(tmp_path, no, "NO_REPLY", no) as r:
        for number in range(1, 4):
            await put(r, run(number))
        assert [out.in_reply_to for out in await r.replies(2)] == [run(1).id, run(3).id]


async def test_other_jobs_and_people_are_told_of_their_own(tmp_path: Path) -> None:
    no = ModelRefused("no")
    async with rig(tmp_path, no, no, no, no) as r:
        await put(r, run(1))
        await put(r, letter("look", "cron:k@2027-01-01T00:00:00Z", **{**JOB, "cron_job_id": "k"}))
        for number in (1, 2):
            await r.put("hello", f"m{number}")
        told = await r.replies(4)

    assert [out.kind for out in told] == ["notice"] * 4
    assert [out.text.startswith("The job") for out in told] == [True, True, False, False]


async def test_a_failure_that_died_before_it_was_told_is_told(tmp_path: Path) -> None:
    """Its note names its letter: the same one is told again, under the same id, and no other one."""
    jobs = Jobs(tmp_path / "state")

    assert await jobs.said(run(1), "x") is not None
    assert await Jobs(tmp_path / "state").said(run(1), "x") is not None
    assert await Jobs(tmp_path / "state").said(run(2), "x") is None
    assert (await jobs.settled(run(3), Reply(text="x", kind="notice", reason="limit"))).silent
    await jobs.settled(run(4), Reply(text="fine"))
    assert await jobs.said(run(5), "x") is not None


async def test_where_nothing_can_be_noted_a_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "failed_jobs.json").write_text("{")
    jobs = Jobs(tmp_path / "state")

    assert await jobs.said(run(1), "x") is not None
    assert not (await jobs.settled(run(2), Reply(text="fine"))).silent
    assert (tmp_path / "state" / "failed_jobs.json").read_text() == "{"
