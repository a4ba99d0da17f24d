"""What a letter ends in: an answer, a notice, or the parked ones; each once, each in its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from channels.message import Inbound, Outbound, read_outbound
from gateway.errors import LetterLost, MailboxDown
from gateway.inbound.control import Control
from gateway.inbound.intake import Intake
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Letter, Mark, ParkedAs, Post, outbound
from gateway.turns.events import Events
from gateway.turns.worker import LetterRules, Worker
from session.errors import BadAnswer, ContextTooLong, ModelAway, ModelRefused
from session.models.model import Answer, ToolCall
from session.store.store import Session, Store
from session.testing import Script
from session.tools import Toolbox
from session.transcript.key import SessionKey
from session.turn.commands import Commands
from session.turn.turn import Request, TurnContext, TurnLimits, Turns

ADA = SessionKey("foreign:ada")
AWAY = ModelAway("503", cause="unreachable", after_s=0.01)


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = datetime(2027, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Rig:
    """A worker on an embedded queue and a real store, with a scripted model."""

    def __init__(self, folder: Path, model: Script, rules: LetterRules) -> None:
        self.folder = folder
        self.model = model
        self.rules = rules
        self.clock = Clock()
        self.mailbox = EmbeddedMailbox(folder / "state")
        self.store = Store(folder, zone=UTC, clock=self.clock)
        self.intake = Intake(self.mailbox)
        self.worker: Worker
        self.more: dict[str, Any] = {}  # what else the worker is given
        self._replies: asyncio.Queue[Outbound] = asyncio.Queue()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Rig]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.mailbox.serve())]
            await self.mailbox.ready()
            events = Events(self.mailbox)
            self.worker = Worker(
                mailbox=self.mailbox,
                store=self.store,
                turns=self._turns(),
                chat_commands=self._commands(),
                events=events,
                rules=self.rules,
                group=group,
                clock=self.clock,
                **self.more,
            )
            control = Control(mailbox=self.mailbox, events=events, orders=self.worker.orders)
            tasks.append(group.create_task(control.run()))
            tasks.append(group.create_task(self._collect()))
            tasks.insert(0, group.create_task(self.worker.run()))
            await self.worker.attached.wait()
            try:
                yield self
                await self.worker.drain(5)
            finally:
                await self.worker.lanes.cancel()
                for task in tasks:
                    task.cancel()
        await self.store.aclose()

    def _commands(self) -> Commands:
        return Commands(status=lambda key: ["fine"], memory=self._memory, ended=self._ended, left=self._left)

    def _turns(self) -> Turns:
        async def around(session: Session, request: Request) -> TurnContext:
            return TurnContext(parts=(), files=self.folder / "files", tools=())

        return Turns(
            model=self.model,
            toolbox=Toolbox([]),
            limits=TurnLimits(max_tool_rounds=1),
            zone=UTC,
            clock=self.clock,
            turn_context=around,
        )

    async def _memory(self, session: Session, request: Request) -> str:
        return ""

    async def _ended(self, session: Session) -> bool:
        return "previous_session" in session.metadata

    async def _left(self, key: str, session_id: str) -> bool:
        return True

    async def _collect(self) -> None:
        async with self.mailbox.take(outbound("foreign")) as letters:
            async for letter in letters:
                self._replies.put_nowait(read_outbound(letter.body))
                await self.mailbox.settle(letter)

    async def put(self, text: str, id: str, key: str = ADA, **fields: Any) -> None:
        await self.intake.accept(letter(text, id, key, **fields))

    async def replies(self, count: int) -> list[Outbound]:
        async with asyncio.timeout(20):
            return [await self._replies.get() for _ in range(count)]

    async def texts(self, count: int) -> list[str]:
        return [reply.text for reply in await self.replies(count)]

    async def lines(self, key: str = ADA) -> list[dict[str, Any]]:
        return (await self.store.look(SessionKey(key))).lines()


def letter(text: str, id: str, key: str = ADA, **fields: Any) -> Inbound:
    channel, _, chat_id = key.partition(":")
    return Inbound(v=1, id=id, key=key, channel=channel, chat_id=chat_id, text=text, **fields)


@asynccontextmanager
async def rig(folder: Path, *steps: Any, **rules: Any) -> AsyncIterator[Rig]:
    built = Rig(folder, Script(steps), LetterRules(**rules))
    async with built.open():
        yield built


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


async def test_a_letter_gets_a_reply_under_an_id_of_its_own(tmp_path: Path) -> None:
    async with rig(tmp_path, "hi") as r:
        await r.put("hello", "m1", platform_id="77")

        (reply,) = await r.replies(1)

        assert (reply.id, reply.in_reply_to, reply.kind, reply.text) == ("m1#reply", "m1", "reply", "hi")
        assert (reply.key, reply.channel, reply.chat_id, reply.reply_to) == (ADA, "foreign", "ada", "77")


async def test_a_message_put_again_after_its_answer_is_answered_again_and_never_asked_again(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, "hi") as r:
        await r.put("hello", "m1")
        first = await r.replies(1)
        await r.put("hello", "m1")

        again = await r.replies(1)

        assert again[0].text == first[0].text
        assert again[0].id == first[0].id
        assert len(r.model.prompts) == 1
        assert len(await r.lines()) == 2


async def test_a_new_put_again_ends_no_second_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("one", "m1")
        await r.put("/new", "m2")
        await r.put("two", "m3")
        replies = await r.texts(3)
        await r.put("/new", "m2")

        assert await r.texts(1) == [replies[1]]
        assert [line["content"] for line in await r.lines()] == ["two", "script: two"]
        assert len(list((tmp_path / "sessions" / "archive" / "foreign_ada").glob("*.jsonl"))) == 1


async def test_after_new_the_model_is_sent_nothing_of_before(tmp_path: Path) -> None:
    """The next message is the whole conversation, in the next turn as well."""
    async with rig(tmp_path) as r:
        for number, text in enumerate(("one", "/new", "two", "three")):
            await r.put(text, f"m{number}")
        await r.replies(4)

        sent = [[str(message["content"]) for message in prompt.messages] for prompt in r.model.prompts]
        assert [len(texts) for texts in sent] == [1, 1, 3]
        assert [any("one" in text for text in texts) for texts in sent] == [True, False, False]


async def test_a_message_of_an_ended_session_stays_known(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("one", "m1")
        await r.put("/new", "m2")
        first, _ = await r.texts(2)
        await r.put("one", "m1")

        assert await r.texts(1) == [first]
        assert len(r.model.prompts) == 1


async def test_what_cannot_be_read_is_parked_and_the_lane_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "junk", b"not json"))
        await r.put("hello", "m1")

        assert await r.texts(1) == ["script: hello"]
        await until(lambda: not r.worker.lanes.get(ADA))
        (parked,) = await r.mailbox.parked()
        assert (parked.id, parked.key, parked.body) == ("junk", None, b"not json")
        assert parked.reason.startswith("unreadable")


async def test_a_text_over_1_mib_is_parked_and_its_chat_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        body = letter("x" * (2**20 + 1), "big").to_bytes()
        await r.mailbox.put(Post(INBOUND, ADA, "big", body))

        (notice,) = await r.replies(1)

        assert (notice.id, notice.kind) == ("big#notice.unreadable", "notice")
        assert "1 MiB" in notice.text
        await until(lambda: r.worker.lanes.get(ADA) is None)
        while not await r.mailbox.parked():
            await asyncio.sleep(0.01)


async def test_a_letter_that_says_nothing_asks_no_model_and_its_chat_is_told(tmp_path: Path) -> None:
    """It is set aside with its reason, and the next letter of the chat is answered."""
    async with rig(tmp_path) as r:
        await r.put("  ", "m1")
        notice = (await r.replies(1))[0]
        await r.put("hello", "m2")

        assert (notice.id, notice.kind) == ("m1#notice.unreadable", "notice")
        assert await r.texts(1) == ["script: hello"]
        assert [line["content"] for line in await r.lines()] == ["hello", "script: hello"]
        while not (parked := await r.mailbox.parked()):
            await asyncio.sleep(0.01)
        assert parked[0].reason == "unreadable: text is empty, and no file comes with it"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadAnswer("nothing"), "bad_answer"),
        (ModelRefused("policy"), "refused"),
        (ContextTooLong("9000 > 8000"), "too_long"),
        (Answer(""), "bad_answer"),
    ],
)
async def test_what_will_never_be_answered_is_parked_with_one_notice_and_the_lane_goes_on(
    tmp_path: Path, error: Any, reason: str
) -> None:
    async with rig(tmp_path, error) as r:
        await r.put("poison", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert (notice.id, notice.kind) == (f"m1#notice.{reason}", "notice")
        assert reply.text == "script: hello"
        (parked,) = await r.mailbox.parked()
        assert (parked.id, parked.key) == ("m1", ADA)
        assert parked.reason.startswith(f"{reason}: ")
        assert all("policy" not in str(line["content"]) for line in await r.lines())


async def test_tools_without_end_are_parked_and_the_transcript_is_legal(tmp_path: Path) -> None:
    calls = [Answer("", tool_calls=[ToolCall(f"c{n}", "nothing", "{}")]) for n in range(3)]
    async with rig(tmp_path, *calls) as r:
        await r.put("loop", "m1")

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.bad_answer"
        assert "used its tools as often as it may" in notice.text
        while not (parked := await r.mailbox.parked()):
            await asyncio.sleep(0.01)
        assert "tools in more than 1 rounds; raise model.max_tool_rounds" in parked[0].reason
        lines = await r.lines()
        assert [line["role"] for line in lines] == ["user", "assistant", "tool"]
        assert lines[2]["is_error"]


async def test_an_outage_holds_its_lane_in_order_and_tells_its_chat_once(tmp_path: Path) -> None:
    async with rig(tmp_path, AWAY, AWAY, AWAY, "one", "two") as r:
        await r.put("1", "m1")
        await r.put("2", "m2")

        notice, first, second = await r.replies(3)

        assert notice.id == "m1#notice.model_away"
        assert (first.text, second.text) == ("one", "two")
        assert not await r.mailbox.parked()
        assert [line["content"] for line in await r.lines()] == ["1", "one", "2", "two"]


async def test_an_outage_of_one_chat_holds_up_no_other(tmp_path: Path) -> None:
    def answer(prompt: Any) -> str:
        text = prompt.messages[-1]["content"]
        if text == "stuck":
            raise ModelAway("429", cause="rate_limit", after_s=60)
        return "fine"

    async with rig(tmp_path, *[answer] * 4, concurrent_turns=1) as r:
        await r.put("stuck", "m1")
        await r.replies(1)
        await r.put("hello", "x1", key="foreign:bob")

        assert await r.texts(1) == ["fine"]


@pytest.mark.slow
async def test_after_outage_hours_the_letter_is_parked_and_its_chat_told(tmp_path: Path) -> None:
    async with rig(tmp_path, AWAY, outage_hours=24) as r:
        r.model.steps += [AWAY] * 1000
        await r.put("1", "m1")
        await r.replies(1)
        r.clock.now += timedelta(hours=24, minutes=1)

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.outage"
        while not (parked := await r.mailbox.parked()):
            await asyncio.sleep(0.01)
        assert parked[0].reason == "outage: 503"


async def test_tries_that_met_an_outage_are_no_attempts(tmp_path: Path) -> None:
    """A letter that was delivered before may meet any number of outages without being parked for it."""
    async with rig(tmp_path) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "m1", letter("1", "m1").to_bytes()))
        await r.replies(1)
        async with r.store.open(ADA) as session:
            for _ in range(5):
                await session.journal.begin("m2", transcript_held_lines=False)
                await session.journal.strike("m2")
        r.model.steps = [AWAY] * 5 + ["two"]

        await r.put("2", "m2")

        replies = await r.replies(2)
        assert [reply.text for reply in replies if reply.kind == "reply"] == ["two"]


async def test_a_turn_that_was_begun_three_times_and_never_ended_is_parked(tmp_path: Path) -> None:
    """Each start died; a fourth one is not made, the chat is told, and the lane goes on."""
    first = Rig(tmp_path, Script(), LetterRules())
    async with asyncio.TaskGroup() as group:
        serve = group.create_task(first.mailbox.serve())
        await first.mailbox.ready()
        await first.put("poison", "m1")
        await first.put("hello", "m2")
        async with first.store.open(ADA) as session:
            for alone in (False, False, True):
                await session.journal.begin("m1", transcript_held_lines=False, alone=alone)
        serve.cancel()
    await first.store.aclose()

    async with rig(tmp_path) as r:
        notice, reply = await r.replies(2)

        assert notice.id == "m1#notice.attempts"
        assert reply.text == "script: hello"
        assert [prompt.messages[-1]["content"] for prompt in r.model.prompts] == ["hello"]
        (parked,) = await r.mailbox.parked()
        assert (parked.reason, parked.attempts) == ("attempts", 3)


@pytest.mark.slow
async def test_a_fault_of_ours_is_tried_again_and_then_parked(tmp_path: Path) -> None:
    def crash(prompt: Any) -> str:
        raise ZeroDivisionError

    async with rig(tmp_path, *[crash] * 10, attempts=2) as r:
        await r.put("boom", "m1")

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.attempts"
        assert len(r.model.prompts) == 2


@pytest.mark.slow
async def test_a_command_that_fails_again_and_again_is_parked_too(tmp_path: Path) -> None:
    built = Rig(tmp_path, Script(), LetterRules(attempts=2))

    async def broken(session: Session, request: Request) -> str:
        raise ZeroDivisionError

    built._memory = broken  # type: ignore[method-assign]
    async with built.open() as r:
        await r.put("/memory", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert notice.id == "m1#notice.attempts"
        assert reply.text == "script: hello"


async def test_an_answer_too_large_to_be_kept_is_parked_and_not_asked_for_again(tmp_path: Path) -> None:
    async with rig(tmp_path, "x" * 2**24) as r:
        await r.put("much", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert notice.id == "m1#notice.too_large"
        assert reply.text == "script: hello"
        assert len(r.model.prompts) == 2


async def test_a_parked_letter_that_is_put_back_becomes_a_new_exchange_at_the_end(tmp_path: Path) -> None:
    async with rig(tmp_path, BadAnswer("x"), "hi", "now it works") as r:
        await r.put("hard", "m1")
        await r.put("easy", "m2")
        await r.replies(2)
        async with r.store.open(ADA) as session:
            await session.journal.unpark("m1")
        await r.mailbox.replay("m1")

        assert await r.texts(1) == ["now it works"]
        assert [line["content"] for line in await r.lines()][-2:] == ["hard", "now it works"]


async def test_stop_ends_the_running_turn_out_of_line_and_waiting_letters_run_on(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer", "two") as r:
        r.model.release.clear()
        await r.put("1", "m1")
        await r.model.held.wait()
        await r.put("2", "m2")
        await r.put("/stop", "s1")
        r.model.release.set()

        replies = await r.replies(2)

        assert sorted((reply.id, reply.text) for reply in replies) == [
            ("m2#reply", "two"),
            ("s1#reply", "Stopped."),
        ]
        await until(lambda: r.worker.lanes.get(ADA) is None)
        assert r._replies.empty()
        closing = (await r.lines())[1]
        assert (closing["stopped"], closing["final"], closing["content"]) == (True, True, "a long")


async def test_stop_ends_a_message_that_waits_for_a_model_that_is_away(tmp_path: Path) -> None:
    async with rig(tmp_path, ModelAway("429", cause="rate_limit", after_s=60), "two") as r:
        await r.put("1", "m1")
        await r.replies(1)
        await until(lambda: r.worker.lanes.get(ADA).nudge is not None)
        await r.put("/stop", "s1")
        await r.put("2", "m2")

        assert sorted(await r.texts(2)) == ["Stopped.", "two"]
        assert (await r.lines())[1]["stopped"]


@pytest.mark.slow
async def test_a_chat_whose_turn_hangs_in_a_known_outage_is_told(tmp_path: Path) -> None:
    """Where another chat has met the outage, one whose own request still hangs need not wait for its end."""

    async def work() -> None:
        await r.put("1", "m1", key="foreign:bob")
        await r.replies(1)

    async with rig(tmp_path) as r:
        r.model.release.clear()
        await r.put("hangs", "m0")
        await r.model.held.wait()
        r.model.steps = [ModelAway("503", cause="unreachable", after_s=60)] * 9
        await work()

        (notice,) = await r.replies(1)

        assert notice.id == "m0#notice.model_away"
        r.model.release.set()
        assert await r.texts(1) == ["script: hangs"]


class Hesitant(EmbeddedMailbox):
    """Refuses what is put under one id, once, and only after ``gate`` is set."""

    def __init__(self, state: Path, *, refused: str) -> None:
        super().__init__(state)
        self.gate = asyncio.Event()
        self._refused = refused

    async def put(self, post: Post) -> None:
        if post.id == self._refused:
            self._refused = ""
            await self.gate.wait()
            raise MailboxDown("no confirmation")
        await super().put(post)


class Late(EmbeddedMailbox):
    """Stores what is put under one id only when ``gate`` is set."""

    def __init__(self, state: Path, *, late: str) -> None:
        super().__init__(state)
        self.waits, self.gate = asyncio.Event(), asyncio.Event()
        self._late = late

    async def put(self, post: Post) -> None:
        if post.id == self._late:
            self.waits.set()
            await self.gate.wait()
        await super().put(post)


async def test_an_outage_that_ends_while_its_chat_is_told_is_waited_for_no_longer(tmp_path: Path) -> None:
    """The model answers another chat before the notice is stored: the lane goes on as soon as it is."""
    r = Rig(
        tmp_path, Script([ModelAway("429", cause="rate_limit", after_s=60), "fine", "late"]), LetterRules()
    )
    mailbox = Late(tmp_path / "state", late="m1#notice.model_away")
    r.mailbox = mailbox
    r.intake = Intake(mailbox)
    async with r.open():
        await r.put("1", "m1")
        await mailbox.waits.wait()
        await r.put("hello", "x1", key="foreign:bob")
        assert await r.texts(1) == ["fine"]
        mailbox.gate.set()

        assert [reply.id for reply in await r.replies(2)] == ["m1#notice.model_away", "m1#reply"]


class Copy:
    """One delivery of a letter, which ends when the test says so."""

    def __init__(self, letter: Letter) -> None:
        self.box, self.id, self.body, self.suspect = letter.box, letter.id, letter.body, False
        self.lost = False

    def begin(self) -> bool:
        return not self.lost


class Again(EmbeddedMailbox):
    """Delivers each letter twice, the second time while the first one is being settled, too late for that."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.first: Copy
        self.ended, self._came = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        async with super().take(box) as letters:
            yield self._twice(letters) if box == INBOUND else letters

    async def _twice(self, letters: AsyncIterator[Letter]) -> AsyncIterator[Letter]:
        async for letter in letters:
            self.first = Copy(letter)
            yield self.first
            await self.ended.wait()
            yield letter
            self._came.set()

    async def settle(self, letter: Letter, puts: Sequence[Post] = ()) -> None:
        if not isinstance(letter, Copy):
            return await super().settle(letter, puts)
        for post in puts:
            await self.put(post)
        letter.lost = True
        self.ended.set()
        await self._came.wait()
        raise LetterLost("it comes again")


async def test_a_letter_that_comes_again_while_it_is_settled_is_settled(tmp_path: Path) -> None:
    """The old delivery cannot be let go of any more; the new one is, and its reply is sent once."""
    r = Rig(tmp_path, Script(["hi"]), LetterRules())
    r.mailbox = Again(tmp_path / "state")
    r.intake = Intake(r.mailbox)
    async with r.open():
        await r.put("hello", "m1")

        await answered_once(r)


async def test_a_letter_lost_in_its_turn_is_answered_when_it_comes_again(tmp_path: Path) -> None:
    """The model is asked once; what it said waits in the transcript for the new delivery."""
    r = Rig(tmp_path, Script(["hi"]), LetterRules())
    mailbox = Again(tmp_path / "state")
    r.mailbox = mailbox
    r.intake = Intake(mailbox)
    async with r.open():
        r.model.release.clear()
        await r.put("hello", "m1")
        await r.model.held.wait()
        mailbox.first.lost = True
        r.model.release.set()
        await until(lambda: r.worker.lanes.get(ADA) is None)
        assert r._replies.empty()
        mailbox.ended.set()

        await answered_once(r)
    assert len(r.model.prompts) == 1


async def answered_once(r: Rig) -> None:
    """Wait for the one reply, and for the end of its letter."""
    assert await r.texts(1) == ["hi"]
    await until(lambda: r.worker.lanes.get(ADA) is None)
    assert (await r.mailbox.depths())[INBOUND].count == 0
    assert r._replies.empty()


class Parking(EmbeddedMailbox):
    """Does something more before whoever parked a letter goes on."""

    def __init__(self, state: Path, then: Callable[[Letter], Awaitable[None]]) -> None:
        super().__init__(state)
        self._then = then

    async def park(self, letter: Letter, listed: ParkedAs, *, mark: Mark | None = None) -> None:
        await super().park(letter, listed, mark=mark)
        await self._then(letter)


async def test_a_letter_that_is_put_back_at_once_is_answered(tmp_path: Path) -> None:
    """Its first delivery still stands in the lane: the new one is a letter of its own."""
    r = Rig(tmp_path, Script([ModelRefused("no"), "fine"]), LetterRules())

    async def put_back(parked: Letter) -> None:
        entry = r.worker.lanes.begun(ADA)
        assert entry is not None
        async with r.store.open(ADA) as session:
            await session.journal.unpark("m1")
        assert await r.mailbox.replay("m1") is not None
        await until(lambda: entry.letter is not parked)

    r.mailbox = Parking(tmp_path / "state", put_back)
    r.intake = Intake(r.mailbox)
    async with r.open():
        await r.put("hello", "m1")

        assert [reply.id for reply in await r.replies(2)] == ["m1#notice.refused", "m1#reply"]
        await until(lambda: r.worker.lanes.get(ADA) is None)
        assert (await r.mailbox.depths())[INBOUND].count == 0


async def test_a_stop_letter_stays_until_its_reply_is_durable(tmp_path: Path) -> None:
    """The answer out of line fails late: the letter has waited for it, and answers itself."""
    r = Rig(tmp_path, Script(["a long answer"]), LetterRules())
    mailbox = Hesitant(tmp_path / "state", refused="s1#reply")
    r.mailbox = mailbox
    r.intake = Intake(mailbox)
    async with r.open():
        r.model.release.clear()
        await r.put("1", "m1")
        await r.model.held.wait()
        await r.put("/stop", "s1")
        await until(lambda: (lane := r.worker.lanes.get(ADA)) is None or lane.entries[0].inbound.id == "s1")
        mailbox.gate.set()

        assert await r.texts(1) == ["Stopped."]
        r.model.release.set()


async def test_stop_with_nothing_running_is_answered_by_its_letter(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("/stop", "s1")

        assert await r.texts(1) == ["Nothing is running."]


async def test_a_stopped_message_put_again_is_answered_by_nothing(tmp_path: Path) -> None:
    """A stopped turn counts as answered: it is not begun again."""
    async with rig(tmp_path, "a long answer") as r:
        r.model.release.clear()
        await r.put("1", "m1")
        await r.model.held.wait()
        await r.put("/stop", "s1")
        await r.replies(1)
        r.model.release.set()
        await r.put("1", "m1")
        await r.put("2", "m2")

        assert await r.texts(1) == ["script: 2"]


async def test_a_stop_that_comes_late_does_not_end_what_came_after_it(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer") as r:
        await r.mailbox.put(Post(INBOUND, ADA, "s1", letter("/stop", "s1").to_bytes()))
        await r.replies(1)
        r.model.release.clear()
        await r.put("1", "m1")
        await r.model.held.wait()

        assert not r.worker.orders.stop(ADA, asked_id="s1")

        r.model.release.set()
        assert await r.texts(1) == ["a long answer"]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("/nwe", "/new"), ("/hlep", "/help"), ("/xyzzy", "/help"), ("/stats", "/status")],
)
async def test_an_unknown_command_is_answered_with_the_nearest_and_never_sent_to_the_model(
    tmp_path: Path, typed: str, answer: str
) -> None:
    async with rig(tmp_path) as r:
        await r.put(typed, "m1")

        assert answer in (await r.texts(1))[0]
        assert r.model.prompts == []


async def test_commands_answer(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for number, text in enumerate(["/help", "/start", "/status", "/memory", "/HELP@some_bot"]):
            await r.put(text, f"m{number}")

        said = {reply.in_reply_to: reply.text for reply in await r.replies(5)}  # /status may overtake
        help_, start, status, memory, again = (said[f"m{number}"] for number in range(5))
        assert "/new" in help_
        assert help_ == start == again
        assert status.startswith("fine\nsession: ")
        assert "Nothing is remembered" in memory
        assert await r.lines() == []


async def test_a_chat_that_piles_up_is_told_once(tmp_path: Path) -> None:
    async with rig(tmp_path, pending_per_chat=3) as r:
        r.model.release.clear()
        for number in range(8):
            await r.put(str(number), f"m{number}")

        (notice,) = await r.replies(1)
        r.model.release.set()
        replies = await r.replies(8)

        assert notice.id.endswith("#notice.busy")
        assert [reply.in_reply_to for reply in replies] == [f"m{number}" for number in range(8)]


async def test_the_answer_goes_to_the_chat_that_answer_to_names_and_keeps_its_id(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("report", "cron:j@1", key="cron:j", answer_to="foreign:boss")

        (reply,) = await r.replies(1)

        assert (reply.key, reply.channel, reply.chat_id) == ("foreign:boss", "foreign", "boss")
        assert reply.id == "cron:j@1#reply"


async def test_replies_and_notices_are_numbered_without_gap(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", BadAnswer("x"), "three") as r:
        for number, text in enumerate(["a", "b", "/help", "c"]):
            await r.put(text, f"m{number}")

        replies = await r.replies(4)

        assert [reply.meta["seq"] for reply in replies] == [1, 2, 3, 4]


async def test_a_drain_leaves_what_waits_to_the_next_daemon(tmp_path: Path) -> None:
    built = Rig(tmp_path, Script(), LetterRules())
    built.model.release.clear()
    async with built.open() as r:
        await r.put("1", "m1")
        await r.model.held.wait()
        await r.put("2", "m2")
        drained = asyncio.ensure_future(r.worker.drain(20))
        await asyncio.sleep(0)
        r.model.release.set()
        assert await drained
        assert await r.texts(1) == ["script: 1"]
        assert len(r.model.prompts) == 1

    async with rig(tmp_path) as r:
        assert await r.texts(1) == ["script: 2"]


async def test_control_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for body in (b"", b"[]", b'{"do":"stop"}', b'{"do":"watch","slots":[999],"for_s":1}', b'{"do":7}'):
            await r.mailbox.tell("control", 0, body)
        await r.mailbox.tell("control", 0, orjson.dumps({"do": "watch", "slots": "all", "for_s": 5}))
        await r.put("hello", "m1")

        assert await r.texts(1) == ["script: hello"]
