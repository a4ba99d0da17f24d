"""A chat sees that its answer is being written, and nothing of it is left when the answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
import pytest

from channels.base import Rendered
from channels.errors import SendLater
from gateway.dispatch.events import EventKind, Events
from gateway.inbound.control import Control
from gateway.outbound.preview import LivePreviews
from gateway.outbound.send_log import SendLog
from gateway.queue.mailbox import Mailbox
from tests.gateway.delivery_place import DEADLINE_S, Place, reply, until_empty

KEY, ASKED = "fake:ada", "fake:1"
OUT = f"{ASKED}#reply"
SENTENCE = "This is the beginning of"


class Time:
    """A clock that is moved by hand, and the sleeps that it ends."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._sleeping: dict[asyncio.Task[object], tuple[float, asyncio.Future[None]]] = {}
        self._changed = asyncio.Event()

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping[task] = (self.now_s + seconds, woken)
        self._changed.set()
        try:
            await woken
        finally:
            self._sleeping.pop(task, None)

    async def asleep(self, *tasks: asyncio.Task[object], at_least: int = 0) -> None:
        """Return once these tasks sleep or have ended."""
        for task in tasks:
            task.add_done_callback(lambda _: self._changed.set())
        async with asyncio.timeout(DEADLINE_S):
            while len(self._sleeping) < at_least or not all(
                task.done() or task in self._sleeping for task in tasks
            ):
                self._changed.clear()
                await self._changed.wait()

    async def pass_by(self, steps: int, *, step_s: float = 1.0, wait: bool = True) -> None:
        """Let seconds pass, one by one; with ``wait`` return when whoever was woken sleeps again or ended."""
        for _ in range(steps):
            self.now_s += step_s
            due = [task for task, (at, _) in self._sleeping.items() if at <= self.now_s]
            for task in due:
                _, woken = self._sleeping.pop(task)
                woken.set_result(None)
            if wait:
                await self.asleep(*due)


class Stage:
    """LivePreviews on a platform in memory, told of turns through a real queue."""

    def __init__(self, place: Place, mailbox: Mailbox) -> None:
        self.place = place
        self.platform = place.platform
        self.mailbox = mailbox
        self.time = Time()
        self.events = Events(mailbox)
        self.previews: LivePreviews
        self.send_log: SendLog

    def build(self, send_log: SendLog, *, stream: bool = True) -> LivePreviews:
        self.send_log = send_log
        self.previews = LivePreviews(
            channel=self.place.channel,
            mailbox=self.mailbox,
            send_log=send_log,
            limiter=self.place.limiter,
            stream=stream,
            turn_timeout_s=30,
            now=self.time.now,
            sleep=self.time.sleep,
        )
        return self.previews

    async def tell(self, kind: EventKind, text: str = "", *, asked: str = ASKED, key: str = KEY) -> None:
        """Tell an event, and return when it was heard and what it began sleeps."""
        await self.events.tell(kind, key, asked, text=text)
        for _ in range(20):
            await asyncio.sleep(0)

    async def writes(self, text: str, *, for_s: int = 0, asked: str = ASKED) -> None:
        """Have a turn start and write this, and let so many seconds pass."""
        await self.tell("started", asked=asked)
        await self.tell("delta", text, asked=asked)
        await self.time.pass_by(for_s)


@asynccontextmanager
async def stage(place: Place, *, stream: bool = True, deliver: bool = False) -> AsyncIterator[Stage]:
    """Open queue, send log and previews; with ``deliver`` also the delivery."""
    async with AsyncExitStack() as stack:
        mailbox = await stack.enter_async_context(place.mailbox())
        made = Stage(place, mailbox)
        if deliver:
            await stack.enter_async_context(place.delivering(mailbox, previews=made.build))
        else:
            made.build(await stack.enter_async_context(SendLog(place.state, "fake")), stream=stream)
        running = asyncio.create_task(made.previews.run(), name="previews")
        await made.time.asleep(at_least=1)
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled(), running.exception()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_it_keeps_the_daemons_telling(place: Place) -> None:
    """What is asked on control makes a daemon tell of all keys, from the start and on and on."""
    async with place.mailbox() as mailbox, SendLog(place.state, "fake") as send_log:
        made = Stage(place, mailbox)
        control = asyncio.create_task(Control(mailbox=mailbox, events=made.events, orders=None).run())
        async with mailbox.listen("control") as orders:
            running = asyncio.create_task(made.build(send_log).run())
            first = orjson.loads(await anext(orders))
            await made.time.asleep(at_least=1)
            await made.time.pass_by(70)
            heard = [orjson.loads(await anext(orders)) for _ in range(5)]
            assert made.events.watched("fake:anyone")
        for task in (running, control):
            task.cancel()
        await asyncio.wait([running, control])

    assert {(each["v"], each["do"], each["slots"], each["for_s"]) for each in [first, *heard]} == {
        (1, "watch", "all", 60)
    }
    assert len({each["id"] for each in [first, *heard]}) == 6


async def test_typing_shows_while_the_turn_lives(place: Place) -> None:
    """It begins with the turn, is refreshed every four seconds, and ends with the reply."""
    async with stage(place) as on:
        await on.tell("started")
        await on.platform.until(lambda platform: platform.typings == ["ada"])
        await on.time.pass_by(8)
        assert on.platform.typings == ["ada"] * 3

        await on.tell("reply", "hello")
        await on.time.pass_by(8)
        assert on.platform.typings == ["ada"] * 3


async def test_typing_ends_with_a_notice_or_with_silence(place: Place) -> None:
    """A turn that ended otherwise, or whose daemon died, is not shown for ever."""
    async with stage(place) as on:
        await on.tell("started")
        await on.tell("notice", "no answer")
        await on.tell("started", asked="fake:2")
        before = len(on.platform.typings)
        await on.time.pass_by(100)
        assert 7 <= len(on.platform.typings) - before <= 9


async def test_only_chats_of_the_platform_are_shown(place: Place) -> None:
    """Turns of other channels, and what cannot be read, are left alone."""
    async with stage(place) as on:
        await on.tell("started", key="web:ada")
        await on.mailbox.tell("events", 0, b"{not json")
        await on.mailbox.tell("events", 0, b"[]")
        await on.tell("queued", key="fake:bob")
        await on.platform.until(lambda platform: platform.typings == ["bob"])


async def test_a_preview_grows_into_the_answer(place: Place) -> None:
    """It is sent after a second with enough text, edited once a second, and ends in the exact answer."""
    async with stage(place, deliver=True) as on:
        await on.writes("This is", for_s=3)
        assert on.platform.texts() == []

        await on.tell("delta", " the beginning of")
        await on.time.pass_by(1)
        assert on.platform.texts() == [SENTENCE]
        assert (await on.send_log.progress(KEY, OUT)).preview in on.platform.messages

        await on.tell("delta", " it")
        await on.tell("delta", " all")
        await on.time.pass_by(5)
        assert on.platform.texts() == [f"{SENTENCE} it all"]
        assert len(on.platform.edits) == 1

        await place.put(on.mailbox, reply(1, "x" * 50))
        await until_empty(on.mailbox)

    assert place.platform.texts() == ["x" * 40, "x" * 10]
    assert len({chunk.nonce for chunk in place.platform.chunks}) == 2


async def test_a_quick_answer_has_no_preview(place: Place) -> None:
    """Text that is younger than a second is not shown yet."""
    async with stage(place) as on:
        await on.tell("started")
        await on.time.pass_by(1, step_s=0.5)
        await on.tell("delta", SENTENCE)
        await on.time.pass_by(1, step_s=0.5)
        assert on.platform.texts() == []
        await on.time.pass_by(1)
        assert on.platform.texts() == [SENTENCE]


async def test_a_group_gets_fewer_edits(place: Place) -> None:
    """A platform counts a group's messages by the minute: the answer must find room."""
    async with stage(place) as on:
        await on.tell("started", key="fake:-5")
        for number in range(20):
            await on.tell("delta", f"{number} {SENTENCE}", key="fake:-5")
            await on.tell("tool", "read", key="fake:-5")
            await on.tell("delta", f"{number} {SENTENCE}", key="fake:-5")
            await on.time.pass_by(1)
        assert len(on.platform.edits) == 3
        assert on.place.limiter.waits == [("-5", True)] * 4


async def test_text_before_a_tool_is_not_the_answer(place: Place) -> None:
    """After a tool the preview shows what comes next."""
    async with stage(place) as on:
        await on.writes("Let me have a look at that.", for_s=2)
        await on.tell("tool", "read")
        await on.tell("delta", "It is all there, as you said.")
        await on.time.pass_by(1)
        assert on.platform.texts() == ["It is all there, as you said."]


async def test_the_id_of_a_preview_is_kept_before_its_first_edit(place: Place) -> None:
    """A restarted adapter goes on with that preview and sends no second one."""
    async with stage(place) as on:
        await on.writes(SENTENCE, for_s=1)
        (preview,) = on.platform.messages
        assert (await on.send_log.progress(KEY, OUT)).preview == preview

    async with stage(place, deliver=True) as on:
        await on.tell("delta", " which was not heard from its beginning")
        await on.time.pass_by(3)
        assert on.platform.texts() == [SENTENCE]
        await on.writes("The turn is tried again, so it is whole", for_s=3)
        assert on.platform.texts() == ["The turn is tried again, so it is whole"]
        await place.put(on.mailbox, reply(1, "final"))
        await until_empty(on.mailbox)

    assert place.platform.texts() == ["final"]
    assert list(place.platform.messages) == [preview]


async def test_a_preview_that_may_have_been_sent_is_not_sent_again(place: Place) -> None:
    """Its id is unknown: it stays as it is, and the answer comes as a message of its own."""
    async with stage(place, deliver=True) as on:
        on.platform.fail("unknown")
        await on.writes(SENTENCE, for_s=10)
        assert on.platform.texts() == [SENTENCE]
        await place.put(on.mailbox, reply(1, "final"))
        await until_empty(on.mailbox)

    assert place.platform.texts() == [SENTENCE, "final"]


async def test_a_chat_that_is_limited_gets_no_previews(place: Place) -> None:
    """After a 429 nothing is drawn until the platform wants calls again; the limiter knows as well."""
    async with stage(place) as on:
        on.platform.fail(SendLater("too many calls", after_s=5.5))
        await on.writes(SENTENCE, for_s=6)
        assert on.place.limiter.pauses == [("ada", 5.5)]
        assert on.platform.texts() == []
        assert len(on.platform.typings) == 1

        await on.time.pass_by(1)
        assert on.platform.texts() == [SENTENCE]


@pytest.mark.parametrize("fault", ["never", "gone"])
async def test_what_the_platform_refuses_is_not_drawn_again(place: Place, fault: str) -> None:
    """A preview that cannot be shown, or was deleted, is let be; nothing else is disturbed."""
    async with stage(place) as on:
        await on.writes(SENTENCE)
        if fault == "gone":
            await on.time.pass_by(1)
        on.platform.fail(fault)  # type: ignore[arg-type]
        await on.tell("delta", " and more")
        await on.time.pass_by(5)
        assert on.platform.texts() == []
        assert len(on.platform.typings) >= 2


async def test_the_answer_waits_for_a_preview_that_is_under_way(place: Place) -> None:
    """No edit of a preview can come after the answer, even where the reply was told before."""
    held = asyncio.Event()
    async with stage(place, deliver=True) as on:
        await on.writes(SENTENCE, for_s=1)
        on.platform.fail(held)
        await on.tell("delta", " it all")
        await on.time.pass_by(1, wait=False)
        await on.platform.until(lambda platform: platform.hanging == 1)

        await on.tell("reply", "final")
        await place.put(on.mailbox, reply(1, "final"))
        await on.mailbox.depths()
        assert on.platform.texts() == [SENTENCE]
        held.set()
        await until_empty(on.mailbox)

    assert [text for _, text in place.platform.edits] == [f"{SENTENCE} it all", "final"]
    assert place.platform.texts() == ["final"]


async def test_a_late_delta_begins_no_preview(place: Place) -> None:
    """What is told after the answer was delivered shows nothing."""
    async with stage(place, deliver=True) as on:
        await place.put(on.mailbox, reply(1, "final"))
        await until_empty(on.mailbox)
        await on.writes(SENTENCE, for_s=5)

    assert place.platform.texts() == ["final"]
    assert place.platform.typings == []


async def test_without_streaming_only_typing_shows(place: Place) -> None:
    """``stream = false`` sends no preview."""
    async with stage(place, stream=False) as on:
        await on.writes(SENTENCE, for_s=5)
        assert on.platform.texts() == []
        assert len(on.platform.typings) == 2


async def test_many_messages_that_wait_in_one_chat_show_no_more_than_one(place: Place) -> None:
    """A backlog would else be as many calls at once, which a platform refuses; other chats are shown, too."""
    async with stage(place) as on:
        for number in range(20):
            await on.tell("queued", asked=f"fake:{number}")
        await on.tell("queued", key="fake:bob")
        await on.platform.until(lambda platform: "bob" in platform.typings)
        assert on.platform.typings == ["ada", "bob"]

        on.time.now_s += 4
        await on.tell("queued", asked="fake:20")
        await on.platform.until(lambda platform: platform.typings == ["ada", "bob", "ada"])


async def test_a_long_answer_is_rendered_no_more_once_its_first_message_is_full(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    split = place.channel.split

    def counted(text: str) -> list[Rendered]:
        rendered.append(len(text))
        return split(text)

    monkeypatch.setattr(place.channel, "split", counted)
    async with stage(place) as on:
        await on.tell("started")
        for _ in range(12):
            await on.tell("delta", "x" * 5_000)
            await on.time.pass_by(1)
        assert on.platform.texts() == ["x" * 40]
    assert 1 <= len(rendered) <= 4
    assert max(rendered) <= 20_000
