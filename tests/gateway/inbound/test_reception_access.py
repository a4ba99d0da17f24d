"""Who may talk, and who may command a group: the others get a code, a notice or silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog

from channels.errors import ChannelDown
from channels.pairing import Pairing
from channels.tables import Platform
from tests.gateway.inbound.reception_front import (
    ADA,
    BOB,
    BOT,
    NOON,
    arrival,
    begun_to_wait,
    file,
    front,
    in_group,
)
from tests.support.guarantee import guarantee

pytestmark = guarantee("security", "A stranger costs no model request and leaves no transcript.")

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
        (place.state / "channels.db").write_bytes(b"no database " * 1000)
        waiting = await begun_to_wait(place.accept(arrival()))
        (place.state / "channels.db").unlink()
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


@pytest.mark.parametrize(
    "text",
    ["/new", "/new@the_bot", "/RESUME 2", "/undo", "/compact the plot", "/forget 2", "/agent x", "/code it"],
)
async def test_in_a_group_some_commands_are_refused_to_most(tmp_path: Path, text: str) -> None:
    asked: list[tuple[str, str]] = []

    async def is_admin(chat_id: str, person_id: str) -> bool:
        asked.append((chat_id, person_id))
        return False

    async with front(tmp_path, is_admin=is_admin, restricted={"code"}) as place:
        await place.accept(in_group(BOB, text=text))

        [notice] = await place.told()
        assert await place.inbound() == []
    assert notice.id == "telegram:9:1#notice.forbidden"
    command = text[1:].split("@")[0].split()[0].lower()
    assert notice.text.endswith(f"people approved by the operator can use /{command}.")
    assert asked == [("-5:topic:3", BOB)]


@pytest.mark.parametrize("text", ["/approve aaaaaaaaaaaaaaaa", "/deny"])
async def test_over_what_runs_no_administrator_decides(tmp_path: Path, text: str) -> None:
    """Who runs a group was not let in to run something on this machine; a press is as a command there."""
    async with front(tmp_path, is_admin=_yes) as place:
        await place.accept(in_group(BOB, text=text))
        await place.accept(in_group(BOB, id="telegram:9:2", text=text, kind="action"))
        await place.accept(in_group(ADA, id="telegram:9:3", text=text, kind="action"))

        assert {notice.text for notice in await place.told()} == {
            "In a group, only people approved by the operator can decide this."
        }
        assert [each.id for each in await place.inbound()] == ["telegram:9:3"]


async def test_a_command_in_other_words_is_refused_as_well(tmp_path: Path) -> None:
    """``/memory forget`` is ``/forget``; ``/memory`` alone changes nothing and is for all."""

    async def is_admin(chat_id: str, person_id: str) -> bool:
        return False

    async with front(tmp_path, is_admin=is_admin) as place:
        await place.accept(in_group(BOB, text="/memory  FORGET 2"))
        await place.accept(in_group(BOB, id="telegram:9:2", text="/memory forgetful"))

        assert [notice.id for notice in await place.told()] == ["telegram:9:1#notice.forbidden"]
        assert [each.id for each in await place.inbound()] == ["telegram:9:2"]


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
        (BOB, "/agent", None),
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
