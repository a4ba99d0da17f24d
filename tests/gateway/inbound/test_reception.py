"""What an adapter emits is a durable letter, a notice, or nothing at all when ``accept`` returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import structlog

from channels.base import Arrival, File
from channels.errors import ChannelDown
from channels.media import MediaFolder
from channels.message import Inbound, Outbound, Sender, read_inbound, read_outbound
from channels.pairing import Pairing, approved
from channels.tables import Platform
from gateway.inbound.intake import Intake
from gateway.inbound.reception import Reception
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND
from gateway.testing import collect
from tests.gateway.embedded_place import opened, vanish

ADA, BOB, BOT, GROUP = "100", "200", "300", "-5"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
OPEN = Platform(allow_from=(ADA,), group_allow=(GROUP,), groups="all")


class Front:
    """A reception with a real queue behind it."""

    def __init__(self, mailbox: EmbeddedMailbox, workspace: Path, table: Platform, **more: Any) -> None:
        self.mailbox = mailbox
        self.state = workspace / "state"
        self.now = NOON
        self.reception = Reception(
            name="telegram",
            table=table,
            intake=Intake(mailbox),
            mailbox=mailbox,
            state=self.state,
            media=MediaFolder(workspace, max_mb=1, timeout_s=5.0),
            clock=lambda: self.now,
            **({"is_admin": None} | more),
        )

    async def accept(self, arrival: Arrival) -> bool:
        async with asyncio.timeout(20):
            return await self.reception.accept(arrival)

    async def bodies(self, box: str) -> list[bytes]:
        """Take all that is in a box."""
        depths = await self.mailbox.depths()
        if box not in depths or not depths[box].count:
            return []
        async with self.mailbox.take(box) as letters:
            found = await collect(letters, depths[box].count)
            for letter in found:
                await self.mailbox.settle(letter)
        return [letter.body for letter in found]

    async def inbound(self) -> list[Inbound]:
        return [read_inbound(body)[0] for body in await self.bodies(INBOUND)]

    async def told(self) -> list[Outbound]:
        return [read_outbound(body) for body in await self.bodies("outbound.telegram")]


@asynccontextmanager
async def front(workspace: Path, table: Platform = OPEN, **more: Any) -> AsyncIterator[Front]:
    async with opened(workspace / "queue") as mailbox:
        yield Front(mailbox, workspace, table, **more)


def arrival(who: str = ADA, **more: Any) -> Arrival:
    fields: dict[str, Any] = {
        "id": "telegram:9:1",
        "chat_id": who,
        "text": "hello",
        "platform_id": "71",
        "sender": Sender(id=who, name="Ada", username="ada"),
    }
    return Arrival(**(fields | more))


def in_group(who: str = BOB, **more: Any) -> Arrival:
    return arrival(who, **({"chat_id": f"{GROUP}:topic:3", "group": True, "group_ids": (GROUP,)} | more))


def file(*pieces: bytes, error: Exception | None = None, **more: Any) -> File:
    async def fetch() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if error is not None:
            raise error

    return File(**({"kind": "photo", "name": "", "mime": "", "size": None, "fetch": fetch} | more))


# ── what is taken ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_is_durable_when_accept_returns(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(arrival())

        await vanish(place.mailbox)
        async with front(tmp_path) as again:
            [inbound] = await again.inbound()
    assert (inbound.id, inbound.key, inbound.text) == ("telegram:9:1", "telegram:100", "hello")


async def test_a_letter_says_all_that_arrived(tmp_path: Path) -> None:
    sent_at = datetime(2026, 5, 1, 13, 59, 58, tzinfo=timezone(timedelta(hours=2)))
    async with front(tmp_path) as place:
        await place.accept(
            in_group(
                kind="edit",
                mentioned=True,
                reply_to="70",
                sent_at=sent_at,
                meta={"thread": 3, "names": ["a"], "none": None},
            )
        )

        [inbound] = await place.inbound()
    assert inbound == Inbound(
        v=1,
        id="telegram:9:1",
        key="telegram:-5:topic:3",
        channel="telegram",
        chat_id="-5:topic:3",
        text="hello",
        kind="edit",
        platform_id="71",
        sender=Sender(id=BOB, name="Ada", username="ada"),
        group=True,
        mentioned=True,
        reply_to="70",
        sent_at="2026-05-01T11:59:58.000000+00:00",
        received_at="2026-05-01T12:00:00.000000+00:00",
        meta={"thread": 3, "names": ["a"], "none": None},
    )


async def test_what_no_json_can_carry_is_replaced_and_not_fatal(tmp_path: Path) -> None:
    torn = "half \ud83d of a smile \U0001f600"
    async with front(tmp_path) as place:
        await place.accept(
            arrival(text=torn, sender=Sender(id=ADA, name=torn), meta={torn: torn, "at": NOON, "set": (1, 2)})
        )

        [inbound] = await place.inbound()
    mended = "half \ufffd of a smile \U0001f600"
    assert (inbound.text, inbound.sender.name) == (mended, mended)
    assert inbound.meta == {mended: mended, "at": str(NOON), "set": [1, 2]}


async def test_a_text_of_two_megabytes_goes_in_as_it_is(tmp_path: Path) -> None:
    text = "x" * 2**21
    async with front(tmp_path) as place:
        await place.accept(arrival(text=text))

        [body] = await place.bodies(INBOUND)
    assert json.loads(body)["text"] == text


async def test_a_file_is_in_the_workspace_before_its_letter(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(arrival(text="look", files=(file(b"GIF89a", b"..", name="../cat.gif"),)))

        [inbound] = await place.inbound()
    [attachment] = inbound.attachments
    assert inbound.text == "look"
    assert (attachment.name, attachment.mime, attachment.size) == ("cat.gif", "image/gif", 8)
    assert (tmp_path / attachment.ref).read_bytes() == b"GIF89a.."


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("look", "look\n[photo not loaded: over 1 MB]\n[voice not loaded: the platform does not give it]"),
        ("", "[photo not loaded: over 1 MB]\n[voice not loaded: the platform does not give it]"),
    ],
)
async def test_a_file_that_cannot_be_had_is_a_line_of_the_text(
    tmp_path: Path, text: str, stored: str
) -> None:
    gone = file(error=RuntimeError("gone"), kind="voice")
    async with front(tmp_path) as place:
        await place.accept(arrival(text=text, files=(file(size=2**21), file(b"GIF89a"), gone)))

        [inbound] = await place.inbound()
    assert inbound.text == stored
    assert len(inbound.attachments) == 1


async def test_a_slow_file_holds_up_its_own_chat_only(tmp_path: Path) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def fetch() -> AsyncIterator[bytes]:
        reached.set()
        await release.wait()
        yield b"x"

    slow = File(kind="video", name="", mime="", size=None, fetch=fetch)
    async with front(tmp_path, Platform(direct="open")) as place:
        waiting = asyncio.create_task(place.accept(arrival(files=(slow,))))
        await reached.wait()
        await place.accept(arrival(BOB, id="telegram:9:2"))
        first = [each.key for each in await place.inbound()]
        release.set()
        await waiting
        second = [each.key for each in await place.inbound()]
    assert (first, second) == (["telegram:200"], ["telegram:100"])


# ── the queue is away ────────────────────────────────────────────────────────────────────────────────────


async def test_while_the_queue_is_away_accept_waits_and_then_the_message_is_in(tmp_path: Path) -> None:
    """It returns as soon as the queue is back, in the order of the calls."""
    mailbox = EmbeddedMailbox(tmp_path / "queue")
    place = Front(mailbox, tmp_path, OPEN)

    async def both() -> None:
        await place.accept(arrival())
        await place.accept(arrival(id="telegram:9:2"))

    with structlog.testing.capture_logs() as logs:
        waiting = asyncio.create_task(both())
        while not logs:
            await asyncio.sleep(0)
    assert logs[0]["event"] == "arrival.waits"
    assert not waiting.done()

    serving = asyncio.create_task(mailbox.serve())
    await asyncio.wait_for(waiting, 10)
    try:
        assert [each.id for each in await place.inbound()] == ["telegram:9:1", "telegram:9:2"]
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_accept_can_be_cancelled_while_the_queue_is_away(tmp_path: Path) -> None:
    place = Front(EmbeddedMailbox(tmp_path / "queue"), tmp_path, OPEN)
    with structlog.testing.capture_logs() as logs:
        waiting = asyncio.create_task(place.accept(arrival()))
        while not logs:
            await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


# ── strangers ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["hello", "/new", "/start", "/stop"])
async def test_a_stranger_gets_one_code_and_leaves_nothing_else(tmp_path: Path, text: str) -> None:
    async with front(tmp_path) as place:
        heard = [
            await place.accept(
                arrival(BOB, id=f"telegram:9:{number}", text=text, meta={"thread": 1}, files=(file(b"x"),))
            )
            for number in range(3)
        ]

        assert heard == [True, False, False]
        [notice] = await place.told()
        assert await place.inbound() == []
    [row] = Pairing(place.state, clock=lambda: NOON).rows()
    assert (notice.id, notice.kind) == ("telegram:9:0#notice.pairing", "notice")
    assert (notice.key, notice.chat_id, notice.reply_to) == ("telegram:200", BOB, "71")
    assert notice.meta == {"thread": 1}
    assert f"chat-gateway pairing approve {row['code']}\n" in notice.text
    assert (row["who"], row["name"]) == ("telegram:200", "Ada")
    assert not (tmp_path / "media").exists()


async def test_an_approval_counts_at_the_next_message(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(arrival(BOB))
        pairing = Pairing(place.state, clock=lambda: NOON)
        pairing.approve(pairing.rows()[0]["code"])

        assert await place.accept(arrival(BOB, id="telegram:9:2"))

        assert [each.id for each in await place.inbound()] == ["telegram:9:2"]
        pairing.revoke(BOB)
        await place.accept(arrival(BOB, id="telegram:9:3"))
        assert await place.inbound() == []


async def test_a_stranger_whose_code_was_lost_by_a_kill_gets_it_when_the_message_comes_again(
    tmp_path: Path,
) -> None:
    """The code is stored before its notice is put: dying in between repeats the notice."""
    code = Pairing(tmp_path / "state", clock=lambda: NOON).ask(
        "telegram", BOB, kind="person", name="Ada", message_id="telegram:9:1"
    )
    async with front(tmp_path) as place:
        await place.accept(arrival(BOB))

        [notice] = await place.told()
    assert code is not None
    assert code in notice.text


async def test_an_edit_of_a_stranger_is_ignored(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        assert not await place.accept(arrival(BOB, kind="edit"))

        assert (await place.told(), await place.inbound()) == ([], [])


async def test_each_dismissal_is_one_line_of_ids_and_a_reason(tmp_path: Path) -> None:
    async with front(tmp_path, Platform(direct="allowlist")) as place:
        with structlog.testing.capture_logs() as logs:
            await place.accept(arrival(BOB, text="my secret"))

    [line] = [line for line in logs if line["event"].startswith("arrival.")]
    assert line["event"] == "arrival.dismissed"
    assert (line["id"], line["chat"], line["sender"]) == ("telegram:9:1", BOB, BOB)
    assert line["reason"] == "not allowed on telegram"
    assert "secret" not in str(line)
    assert "Ada" not in str(line)


async def test_while_the_list_of_approved_people_cannot_be_read_nothing_is_dismissed(tmp_path: Path) -> None:
    """A damaged file would turn friends into strangers: the message waits for whoever mends it."""
    async with front(tmp_path) as place:
        place.state.mkdir()
        (place.state / "pairing.json").write_text("{")
        with structlog.testing.capture_logs() as logs:
            waiting = asyncio.create_task(place.accept(arrival()))
            while not logs:
                await asyncio.sleep(0)
        assert not waiting.done()
        (place.state / "pairing.json").unlink()
        await waiting

        assert len(await place.inbound()) == 1


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_mention_in_an_unlisted_group_is_answered_with_a_code_for_the_group(tmp_path: Path) -> None:
    table = Platform(allow_from=(ADA,))
    async with front(tmp_path, table) as place:
        await place.accept(in_group(BOB, mentioned=True))
        assert await place.told() == []

        await place.accept(in_group(ADA, mentioned=True))
        [notice] = await place.told()
        pairing = Pairing(place.state, clock=lambda: NOON)
        [row] = pairing.rows()
        assert (notice.id, notice.chat_id) == ("telegram:9:1#notice.pairing", "-5:topic:3")
        assert (row["who"], row["name"]) == ("telegram:-5", "group, asked by Ada")
        assert row["code"] in notice.text

        pairing.approve(row["code"])
        await place.accept(in_group(BOB, id="telegram:9:2", mentioned=True))
        assert [each.id for each in await place.inbound()] == ["telegram:9:2"]


@pytest.mark.parametrize("text", ["/new", "/new@the_bot", "/RESUME 2", "/undo", "/compact the plot"])
async def test_in_a_group_some_commands_are_refused_to_most(tmp_path: Path, text: str) -> None:
    asked: list[tuple[str, str]] = []

    async def is_admin(chat_id: str, person_id: str) -> bool:
        asked.append((chat_id, person_id))
        return False

    async with front(tmp_path, is_admin=is_admin) as place:
        await place.accept(in_group(BOB, text=text))

        [notice] = await place.told()
        assert await place.inbound() == []
    assert notice.id == "telegram:9:1#notice.forbidden"
    assert f"/{text[1:].split('@')[0].split()[0].lower()} is for its administrators" in notice.text
    assert asked == [("-5:topic:3", BOB)]


async def _yes(chat_id: str, person_id: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("who", "text", "is_admin"),
    [
        (ADA, "/new", None),
        (BOB, "/new", _yes),
        (BOB, "/status", None),
        (BOB, "/stop", None),
        (BOB, "/newest", None),
    ],
)
async def test_in_a_group_others_and_other_commands_pass(
    tmp_path: Path, who: str, text: str, is_admin: Callable[[str, str], Awaitable[bool]] | None
) -> None:
    async with front(tmp_path, is_admin=is_admin) as place:
        await place.accept(in_group(who, text=text))

        assert [each.text for each in await place.inbound()] == [text]


async def test_an_approved_person_may_command_a_group_and_anyone_a_direct_chat(tmp_path: Path) -> None:
    async with front(tmp_path, Platform(direct="open", groups="all", group_allow=("*",))) as place:
        Pairing(place.state).admit("telegram", ADA, kind="person", name="Ada")

        await place.accept(in_group(ADA, text="/undo"))
        await place.accept(arrival(BOB, text="/new"))

        assert len(await place.inbound()) == 2


async def test_without_word_from_the_platform_nobody_is_an_administrator(tmp_path: Path) -> None:
    async def away(chat_id: str, person_id: str) -> bool:
        raise ChannelDown("away")

    async with front(tmp_path, is_admin=away) as place:
        await place.accept(in_group(BOB, text="/new"))

        [notice] = await place.told()
        assert await place.inbound() == []
    assert "Try again" in notice.text


async def test_two_bots_end_after_five_messages(tmp_path: Path) -> None:
    async with front(tmp_path, Platform(allow_from=(BOT,), groups="all", group_allow=("*",))) as place:
        for number in range(8):
            await place.accept(in_group(BOT, id=f"telegram:9:{number}", from_bot=True))
        assert len(await place.inbound()) == 5

        await place.accept(in_group(BOB, id="telegram:9:20"))
        await place.accept(in_group(BOT, id="telegram:9:21", from_bot=True))
        assert len(await place.inbound()) == 2


async def test_a_person_who_is_not_heard_ends_the_count_of_bots_too(tmp_path: Path) -> None:
    async with front(tmp_path, Platform(allow_from=(BOT,), group_allow=("*",))) as place:
        for number in range(6):
            await place.accept(in_group(BOT, id=f"telegram:9:{number}", from_bot=True, mentioned=True))
        await place.accept(in_group(BOB, id="telegram:9:20"))
        await place.accept(in_group(BOT, id="telegram:9:21", from_bot=True, mentioned=True))

        assert [each.id for each in await place.inbound()][-2:] == ["telegram:9:4", "telegram:9:21"]


# ── a group that moves ───────────────────────────────────────────────────────────────────────────────────


def moved() -> Arrival:
    return arrival(
        chat_id="-1005", group=True, group_ids=("-1005",), text="", sender=Sender(), moved_from=GROUP
    )


async def test_a_group_that_moves_is_one_letter_under_its_old_key(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(moved())

        [inbound] = await place.inbound()
    assert (inbound.id, inbound.key, inbound.chat_id) == ("telegram:9:1", "telegram:-5", GROUP)
    assert (inbound.kind, inbound.text) == ("action", "")
    assert inbound.meta == {"moved_to": "telegram:-1005"}


async def test_a_group_that_was_let_in_still_is_after_it_moved(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(moved())
        await place.accept(moved())
        await place.accept(
            in_group(BOB, id="telegram:9:2", chat_id="-1005", group_ids=("-1005",), mentioned=True)
        )

        assert [each.key for each in await place.inbound()][-1] == "telegram:-1005"
    assert approved(place.state, "telegram").groups == {"-1005"}
    assert len(Pairing(place.state).rows()) == 1


async def test_a_group_that_was_not_let_in_is_not_after_it_moved(tmp_path: Path) -> None:
    async with front(tmp_path, Platform()) as place:
        await place.accept(moved())

    assert approved(place.state, "telegram").groups == frozenset()
