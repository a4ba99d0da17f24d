"""The last hand-over: every chunk once, in order, whatever the platform does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.base import Chunk, Rendered
from channels.errors import ChannelDown, SendNever, SendUnknown
from channels.message import Attachment, Outbound
from channels.testing import FakeChannel
from gateway.outbound.send_log import SendLog
from gateway.outbound.sender import QUESTIONS_MAX
from gateway.queue.mailbox import Mailbox, Post
from tests.gateway.delivery_place import BOX, Place, cancelled, reply, until_empty
from tests.gateway.embedded_place import BreaksAt, files_at_most, serving
from tests.support.clock import Clock
from tests.support.until import until

LONG = "a" * 40 + "b" * 40 + "c" * 40
PIECES = ["a" * 40, "b" * 40, "c" * 40]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _preview() -> Chunk:
    return Chunk("ada", Rendered("so far"), nonce="preview")


async def test_a_letter_is_sent_chunk_by_chunk_and_then_gone(place: Place) -> None:
    """Chunks come in order; the first one quotes; each has a nonce of its own, also that of a notice."""
    await place.delivered(reply(1, "wait", kind="notice"), reply(1, LONG))

    assert place.platform.texts() == ["wait", *PIECES]
    assert [chunk.reply_to for chunk in place.platform.chunks] == ["p1", "p1", None, None]
    nonces = {chunk.nonce for chunk in place.platform.chunks}
    assert len(nonces) == 4
    assert all(0 < len(nonce) <= 25 for nonce in nonces)
    assert place.limiter.waits == [("ada", False)] * 4


async def test_a_repeat_of_a_delivered_letter_is_only_settled(place: Place) -> None:
    """The same reply put again, even after a restart, is sent once."""
    async with place.mailbox() as mailbox:
        for _ in range(2):
            async with place.delivering(mailbox):
                await place.put(mailbox, reply(1, "hello"))
                await until_empty(mailbox)

    assert place.platform.texts() == ["hello"]


async def test_a_chat_that_waits_holds_up_no_other(place: Place) -> None:
    """While a send to one chat hangs, others are served; its own letters keep their order."""
    hanging = asyncio.Event()
    place.platform.fail(hanging, chat_id="ada")
    async with place.open() as mailbox:
        await place.put(mailbox, *(reply(number, f"ada {number}") for number in range(3)))
        await place.put(mailbox, *(reply(number, f"bob {number}", chat="bob") for number in range(3)))
        await place.platform.until(lambda platform: len(platform.texts("bob")) == 3)
        assert place.platform.texts("ada") == []

        hanging.set()
        await until_empty(mailbox)

    assert place.platform.texts("ada") == ["ada 0", "ada 1", "ada 2"]
    assert place.platform.texts("bob") == ["bob 0", "bob 1", "bob 2"]


async def test_while_the_platform_is_away_everything_waits_in_order(place: Place) -> None:
    """Not sent is tried again at the same chunk for as long as it takes; nothing is repeated or dropped."""
    async with place.open() as mailbox:
        place.platform.fail(*["down"] * 22, chat_id="ada")
        await place.put(mailbox, reply(1, LONG), reply(2, "next"))
        await until_empty(mailbox)

    assert place.platform.texts() == [*PIECES, "next"]
    assert len(place.naps.taken) == 22
    assert max(place.naps.taken) <= 15
    assert "no connection" in place.delivery.last_error


async def test_too_many_calls_pause_the_chat(place: Place) -> None:
    """A 429 is the limiter's to know, and costs nothing."""
    place.platform.fail("later")
    await place.delivered(reply(1, LONG))

    assert place.platform.texts() == PIECES
    assert place.limiter.pauses == [("ada", 0.01)]


async def test_an_unknown_outcome_is_repeated_once(place: Place) -> None:
    """The chunk may be there twice, the others are there once."""
    place.platform.fail("unknown")
    await place.delivered(reply(1, LONG))

    assert place.platform.texts() == [PIECES[0], *PIECES]
    first, again = place.platform.chunks[:2]
    assert first == again


async def test_unknown_twice_is_parked_and_the_chat_goes_on(place: Place) -> None:
    """Nobody can know: it is set aside as such, and a retry goes on at that chunk."""
    place.platform.fail("unknown", "unknown")
    async with place.open() as mailbox:
        await place.put(mailbox, reply(1, LONG), reply(2, "next"))
        await until_empty(mailbox, parked=1)
        (parked,) = await mailbox.parked()
        assert (parked.reason, parked.key, parked.id) == ("unknown", "fake:ada", "fake:1#reply")
        assert place.platform.texts() == [PIECES[0], PIECES[0], "next"]

        await mailbox.replay("fake:1#reply")
        await until_empty(mailbox)

    assert place.platform.texts()[3:] == PIECES


async def test_a_platform_that_knows_repeats_gets_them_until_it_answers(tmp_path: Path) -> None:
    """Where the nonce makes a repeat safe, nothing is parked and nothing is there twice."""
    place = Place(tmp_path, safe_to_repeat=True)
    place.platform.remembers = True
    place.platform.fail(*["unknown"] * 5)
    await place.delivered(reply(1, LONG))

    assert place.platform.texts() == PIECES


async def test_what_is_refused_for_good_is_parked_and_shown(place: Place) -> None:
    """The letter is set aside with the platform's words; the chat's next letter is sent."""
    place.platform.fail("never")
    (parked,) = await place.delivered(reply(1, LONG), reply(2, "next"), parked=1)

    assert parked.reason == "refused: the chat is closed to bots"
    told = "Fake rejected the answer to this message. The operator can see why."
    assert place.platform.texts() == [told, "next"]
    assert (place.delivery.last_error, place.delivery.parked) == (
        "fake:ada: the chat is closed to bots",
        1,
    )


async def test_an_adapter_that_fails_costs_one_letter(place: Place) -> None:
    """What nobody foresaw is tried once more, then parked; the delivery lives on."""
    place.platform.fail(RuntimeError("bug"), RuntimeError("bug"))
    (parked,) = await place.delivered(reply(1, "hello"), reply(2, "next"), parked=1)

    assert parked.reason == "failed: RuntimeError"
    assert place.platform.texts() == ["next"]


async def test_a_moved_chat_gets_its_letters_under_its_new_id(place: Place) -> None:
    """The letter, those that wait and those after a restart; the old chat's messages are not quoted."""
    async with place.mailbox() as mailbox:
        async with place.delivering(mailbox):
            place.platform.fail("moved")
            await place.put(mailbox, reply(1, "one"), reply(2, "two"))
            await until_empty(mailbox)
        async with place.delivering(mailbox):
            await place.put(mailbox, reply(3, "three"))
            await until_empty(mailbox)

    assert place.platform.texts("ada") == []
    assert place.platform.texts("ada2") == ["one", "two", "three"]
    assert {chunk.reply_to for chunk in place.platform.chunks} == {None}


async def test_a_mark_without_an_outcome_is_repeated_after_a_restart(place: Place) -> None:
    """A process that died between mark and answer may have sent the chunk: it is sent again, not for ever."""
    async with SendLog(place.state, "fake") as send_log:
        await send_log.sent("fake:ada", "fake:1#reply", 0, platform_id="m0")
        await send_log.trying("fake:ada", "fake:1#reply", 1)
        for _ in range(2):
            await send_log.trying("fake:ada", "fake:2#reply", 0)
        for _ in range(3):
            await send_log.trying("fake:ada", "fake:3#reply", 0)

    async with place.open() as mailbox:
        letters = [reply(1, LONG), reply(2, "died twice"), reply(3, "died three times"), reply(4, "next")]
        await place.put(mailbox, *letters)
        await until_empty(mailbox, parked=1)
        (parked,) = await mailbox.parked()

    assert place.platform.texts() == [*PIECES[1:], "died twice", "next"]
    assert (parked.id, parked.reason) == ("fake:3#reply", "unknown")


async def test_a_send_is_noted_before_it_begins(place: Place) -> None:
    """While a call is under way its outcome is unknown; what surely failed before does not count."""
    held = asyncio.Event()
    async with place.open() as mailbox:
        place.platform.fail("down", "later", held)
        await place.put(mailbox, reply(1, LONG))
        await place.platform.until(lambda platform: platform.hanging == 1)
        async with SendLog(place.state, "fake") as other:
            assert (await other.progress("fake:ada", "fake:1#reply")).unknown == {0: 1}
        held.set()
        await until_empty(mailbox)


async def test_a_restarted_delivery_goes_on_at_the_next_chunk(place: Place) -> None:
    """The call under way at the end may end, and is noted; what was accepted is not sent again."""
    passing, held, leave = asyncio.Event(), asyncio.Event(), asyncio.Event()
    passing.set()

    async def first(mailbox: Mailbox) -> None:
        async with place.delivering(mailbox):
            await leave.wait()

    async with place.mailbox() as mailbox, asyncio.TaskGroup() as group:
        delivering = group.create_task(first(mailbox))
        place.platform.fail(passing, held)
        await place.put(mailbox, reply(1, LONG), reply(2, "next"))
        await place.platform.until(lambda platform: platform.hanging == 1)
        leave.set()
        await cancelled(delivering)
        held.set()
        await delivering
        assert place.platform.texts() == PIECES[:2]

        async with place.delivering(mailbox):
            await until_empty(mailbox)

    assert place.platform.texts() == [*PIECES, "next"]


async def test_nothing_is_sent_that_cannot_be_noted(place: Place) -> None:
    """On a full disk the next chunk waits; when there is room all comes, once."""
    held = asyncio.Event()
    async with place.open() as mailbox:
        place.platform.fail(held)
        await place.put(mailbox, reply(1, LONG))
        await place.platform.until(lambda platform: platform.hanging == 1)
        with files_at_most(1):
            held.set()
            await place.naps.changed.wait()
            assert place.platform.texts() == PIECES[:1]
        await until_empty(mailbox)

    assert place.platform.texts() == PIECES
    assert "channels.db cannot be written" in place.delivery.last_error


async def test_files_follow_the_text(place: Place) -> None:
    """A file of the workspace is sent as such; what may not leave, or is not there, is named in its place."""
    inside = place.folder / "files" / "report.txt"
    inside.parent.mkdir()
    inside.write_text("figures")
    (place.folder / "files" / "big").write_bytes(bytes(2**20 + 1))
    (place.folder / "files" / "link").symlink_to("/etc/hostname")
    (place.folder / "state").mkdir(exist_ok=True)
    (place.folder / "state" / "secret").write_text("x")
    refs = [
        "files/report.txt",
        "files/link",
        "../outside",
        "files/none",
        "files/big",
        "state/secret",
        "files",
    ]
    files = [Attachment(name=ref.rpartition("/")[2], ref=ref) for ref in refs]
    place.channel = type(place.channel)(place.platform, max_chars=200)
    await place.delivered(reply(1, "here", files=files))

    assert list(place.platform.files.values()) == [b"figures"]
    assert place.platform.texts() == [
        "here",
        "report.txt",
        "[link: this file may not be sent]",
        "[outside: this file no longer exists]",
        "[none: this file no longer exists]",
        "[big: this file is too large to be sent (1.0 MB)]",
        "[secret: this file may not be sent]",
        "[files: this is not a file]",
    ]


async def test_a_refused_file_drops_no_tail(place: Place) -> None:
    """A file that the platform refuses is named in the chat; what follows it is sent."""
    for name in ("one", "two"):
        (place.folder / name).write_text(name)
    files = [Attachment(name=name, ref=name) for name in ("one", "two")]
    held = asyncio.Event()
    place.platform.fail(held, "never")
    async with place.open() as mailbox:
        held.set()
        await place.put(mailbox, reply(1, "here", files=files))
        await until_empty(mailbox)

    assert place.platform.texts()[0] == "here"
    assert place.platform.texts()[-1] == "two"
    assert "one" in place.platform.texts()[1]


async def test_a_file_that_may_have_been_sent_is_parked_as_unknown(place: Place) -> None:
    """Nobody is told that it could not be sent, since it may be there."""
    (place.folder / "one").write_text("one")
    passing = asyncio.Event()
    passing.set()
    place.platform.fail(passing, "unknown", "unknown")
    (parked,) = await place.delivered(reply(1, "here", files=[Attachment(name="one", ref="one")]), parked=1)

    assert parked.reason == "unknown"
    assert place.platform.texts() == ["here", "one", "one"]


@pytest.mark.parametrize("fault", ["unknown", "down", "later"])
async def test_an_edit_is_made_again_until_it_is_known(place: Place, fault: str) -> None:
    """The same edit twice is one edit: whatever fails, nothing is sent beside the preview."""
    async with place.mailbox() as mailbox, place.delivering(mailbox) as send_log:
        preview = await place.platform.take(_preview())
        await send_log.begin_preview("fake:ada", "fake:1#reply")
        await send_log.preview_sent("fake:ada", "fake:1#reply", preview)
        place.platform.fail(*[fault] * 4)  # type: ignore[list-item]
        await place.put(mailbox, reply(1, "final"))
        await until_empty(mailbox)

    assert place.platform.texts() == ["final"]


async def test_a_deleted_preview_is_sent_anew(place: Place) -> None:
    """Where the preview is gone the answer comes as a new message."""
    async with place.mailbox() as mailbox, place.delivering(mailbox) as send_log:
        await send_log.begin_preview("fake:ada", "fake:1#reply")
        await send_log.preview_sent("fake:ada", "fake:1#reply", "m99")
        await place.put(mailbox, reply(1, "final"))
        await until_empty(mailbox)

    assert place.platform.texts() == ["final"]


UNKNOWN = SendUnknown("the server answered with an error (502)")


class FailingServer(FakeChannel):
    """A platform whose next calls fail, and do nothing; a ``mute`` one answers to nothing but sends."""

    faults: list[Exception]
    mute = False

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)

    async def send(self, chunk: Chunk) -> str:
        self._fail()
        return await super().send(chunk)

    async def typing(self, chat_id: str) -> None:
        self._fail()
        if self.mute:
            raise UNKNOWN
        await super().typing(chat_id)


@pytest.fixture
def server(place: Place) -> FailingServer:
    server = FailingServer(place.platform)
    place.channel = server
    return server


@pytest.mark.parametrize("fault", [UNKNOWN, ChannelDown("no connection"), TimeoutError()])
async def test_the_last_try_waits_until_the_platform_answers(
    place: Place, server: FailingServer, fault: Exception
) -> None:
    server.faults = [UNKNOWN, *[fault] * 9, UNKNOWN]
    await place.delivered(reply(1, "first"), reply(2, "second"))

    assert place.platform.texts() == ["first", "second"]
    assert not server.faults


async def test_a_platform_that_answers_nothing_but_sends_is_tried_in_the_end(
    place: Place, server: FailingServer
) -> None:
    server.faults, server.mute = [UNKNOWN], True
    await place.delivered(reply(1, "first"))

    assert place.platform.texts() == ["first"]
    assert len(place.naps.taken) == 1 + QUESTIONS_MAX


TRIES = 3


@pytest.mark.parametrize("kind", ["unreadable", "refused"])
async def test_the_next_letter_is_sent_and_this_one_comes_again(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path)
    mailbox = BreaksAt(tmp_path / "state", parking=True)
    async with serving(mailbox), place.delivering(mailbox):
        if kind == "unreadable":
            await mailbox.put(Post(BOX, "fake:ada", "poison", b"not json"))
        else:
            place.platform.fail(SendNever("no"))
            await place.put(mailbox, reply(1, "refused"))
        await place.put(mailbox, reply(2, "hello"))
        await until(lambda: mailbox.tried == TRIES and place.platform.texts()[-1:] == ["hello"])
        assert place.delivery.parked == 0

    assert place.naps.taken == [1, 2]
    place.platform.fail(SendNever("no"))
    async with place.open() as again:
        await until_empty(again, parked=1)
    refused = (
        ["Fake rejected the answer to this message. The operator can see why."] if kind == "refused" else []
    )
    assert place.platform.texts() == [*refused, "hello"]


NAMED = "[plan: this file could not be sent]"
CUT = SendUnknown("no answer in time")


class SlowChannel(FakeChannel):
    """Takes its time for every file, and is cut off then."""

    clock: Clock

    async def send(self, chunk: Chunk) -> str:
        if isinstance(chunk.content, Path):
            self.clock.forward(240)
            self.platform.fail(CUT)
        return await super().send(chunk)


@pytest.fixture
def repeating(tmp_path: Path) -> Place:
    """A place where a repeat is safe, with a file that does not get through."""
    (tmp_path / "plan").write_text("step 1")
    made = Place(tmp_path, safe_to_repeat=True)
    made.platform.remembers = True
    return made


def with_plan() -> Outbound:
    return reply(1, "", files=[Attachment(name="plan", ref="plan")])


async def test_a_file_whose_outcome_stays_unknown_is_named_in_its_place(repeating: Place) -> None:
    """It is tried again for ten minutes; then a line says that it is missing, and the next letter is sent."""
    repeating.platform.fail(*[CUT] * 44)
    await repeating.delivered(with_plan(), reply(2, "next"))

    assert repeating.platform.texts() == [NAMED, "next"]
    assert 600 <= sum(repeating.naps.taken) < 620


async def test_uploads_that_are_cut_off_count_with_their_time(tmp_path: Path, repeating: Place) -> None:
    """Three of four minutes each are enough."""
    channel = SlowChannel(repeating.platform, safe_to_repeat=True)
    channel.clock = Clock()
    repeating.channel, repeating.now = channel, channel.clock.monotonic
    await repeating.delivered(with_plan(), reply(2, "next"))

    assert repeating.platform.texts() == [NAMED, "next"]
    assert channel.clock.monotonic() == 3 * 240


async def test_a_file_that_is_there_after_all_is_not_named_as_missing(repeating: Place) -> None:
    """What would stand in its repeating has its nonce, by which the platform gives the file back."""
    for _ in range(44):
        repeating.platform.fail("unknown")
    await repeating.delivered(with_plan(), reply(2, "next"))

    assert repeating.platform.texts() == ["plan", "next"]


async def test_an_outage_is_not_counted(repeating: Place) -> None:
    """While the platform is away, nothing is in doubt: the file is sent when it is back."""
    for _ in range(100):
        repeating.platform.fail("down")
    await repeating.delivered(with_plan())

    assert repeating.platform.texts() == ["plan"]
