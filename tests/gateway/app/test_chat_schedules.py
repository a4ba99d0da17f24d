"""The tool ``schedule`` on the file that the clock reads: zones, bounds, and whom the operator let in."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from channels.cron.jobs_file import CronFile
from channels.pairing import Pairing
from gateway.app.surroundings import SurroundingsReader
from gateway.app.wiring_cron import ChatSchedules
from gateway.config.agents import scopes_of
from gateway.config.load import load
from session.context.context import Surroundings
from session.context.scopes import Reader
from session.models.model import ToolCall
from session.tools import Toolbox, ToolPlace, ToolResult
from session.tools.schedule import Schedule
from tests.support.place import write

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
CHAT, GROUP = "telegram:1", "telegram:-5"
ADA, BOB = {"id": "1", "name": "Ada"}, {"id": "2", "name": "Bob"}


class Chats:
    """The tool as several people use it in several chats."""

    def __init__(self, workspace: Path, **environ: str) -> None:
        self.workspace = workspace
        named = {f"CHAT_GATEWAY_{name.upper()}": value for name, value in environ.items()}
        self.settings = load(workspace=workspace, environ={"HOME": str(workspace), **named})
        self.box = Toolbox(
            [Schedule(ChatSchedules(self.settings, scopes_of(self.settings), clock=lambda: NOW))]
        )
        self._number = 0

    async def use(self, action: str, *, key: str = CHAT, sender: Any = ADA, **more: Any) -> ToolResult:
        self._number += 1
        place = {name: more.pop(name) for name in ("source", "message_id", "scope") if name in more}
        at = ToolPlace(
            self.workspace / "files",
            key,
            group=key == GROUP,
            sender=sender,
            **{"message_id": f"m{self._number}", **place},
        )
        call = ToolCall("c", "schedule", json.dumps({"action": action, **more}))
        return await self.box.run(call, at, ["schedule"])

    def rows(self) -> list[Any]:
        return [dict(job.row) for job in CronFile(self.workspace).read().jobs.values()]


@pytest.fixture
def chats(tmp_path: Path) -> Chats:
    return Chats(tmp_path)


async def test_a_time_is_on_the_clocks_of_the_profile(tmp_path: Path) -> None:
    """Else on those of the configuration; a zone that the model names comes first. The result says which."""
    write(tmp_path / "memory" / "chats" / "telegram_1" / "USER.md", "timezone: Asia/Tokyo\n")
    chats = Chats(tmp_path, timezone="Europe/Berlin")
    nine: dict[str, Any] = {"at": "2027-01-01T09:00", "message": "wake"}

    own = await chats.use("add", scope="chats/telegram_1", **nine)
    other = await chats.use("add", key="telegram:7", scope="chats/telegram_7", **nine)
    named = await chats.use("add", tz="America/New_York", **nine)
    daily = await chats.use("add", cron="0 9 * * *", message="x", scope="chats/telegram_1")

    assert [result.text.partition(": ")[2] for result in (own, other, named)] == [
        "at 2027-01-01 09:00 JST, next 2027-01-01 09:00 JST",
        "at 2027-01-01 09:00 CET, next 2027-01-01 09:00 CET",
        "at 2027-01-01 15:00 CET, next 2027-01-01 15:00 CET",
    ]
    assert daily.text.endswith("0 9 * * * Asia/Tokyo, next 2026-06-02 09:00 JST")


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"message": "x"}, "expected exactly one schedule"),
        ({"message": "x", "every": "1h", "at": "2027-01-01T09:00"}, "expected exactly one schedule"),
        ({"message": "x", "every": "59s"}, "below one minute"),
        ({"message": "x", "every": "soon"}, "not a valid interval"),
        ({"message": "x", "at": "2026-06-01T11:00"}, "is in the past"),
        ({"message": "x", "at": "tomorrow"}, "not a valid date and time"),
        ({"message": "x", "at": "9999-12-31T23:59:59Z"}, "too far in the future"),
        ({"message": "x", "at": "2027-01-01T09:00", "tz": "Berlin"}, "no time zone"),
        ({"message": "x", "cron": "* * * * * *"}, "6 fields"),
        ({"message": "", "every": "1h"}, "pass in message"),
        ({"message": "x" * 4_001, "every": "1h"}, "too long"),
    ],
)
async def test_what_cannot_be_made_is_said_with_its_cure(
    chats: Chats, wish: dict[str, Any], said: str
) -> None:
    result = await chats.use("add", **wish)

    assert result.is_error
    assert said in result.text
    assert not (chats.workspace / "cron" / "jobs.json").exists()


async def test_the_owner_and_the_chat_are_recorded(chats: Chats) -> None:
    await chats.use("add", every="1h", message="water", name="plants", key=GROUP, message_id="telegram:9:1")
    await chats.use("add", every="2h", message="long work", session="job")

    first, second = (row["payload"] for row in chats.rows())
    assert first["owner"] == {"chat": GROUP, "id": "1", "name": "Ada", "message_id": "telegram:9:1"}
    assert (first["deliver"], first["channel"], first["to"], first["session"]) == (
        True,
        "telegram",
        "-5",
        "chat",
    )
    assert "session" not in second
    listed = (await chats.use("list", key=GROUP, sender=BOB)).text
    assert "“plants”: every 1h, next 2026-06-01 13:00 UTC, made by Ada" in listed
    assert "long work" not in listed


async def test_open_work_of_a_chat_names_its_jobs(chats: Chats) -> None:
    """Those of its own session and those of the chat's, by whomever they were made; no other chat's."""
    await chats.use("add", every="1h", message="water")
    await chats.use("add", every="2h", message="work", session="job")
    await chats.use("add", every="1h", message="secret", key=GROUP)

    scope = scopes_of(chats.settings).of(Reader(CHAT, "direct"), stem="telegram_1")
    known = SurroundingsReader(chats.settings)(Surroundings(CHAT, scope))

    assert [work.text.partition("” ")[0] for work in known.open_work] == ["the job “water", "the job “work"]


@pytest.mark.parametrize(
    ("let_in", "may"), [("", False), ('["2"]', True), ('["*"]', False), ('["3"]', False)]
)
async def test_whoever_is_let_in_by_name_changes_what_others_made(
    tmp_path: Path, let_in: str, may: bool
) -> None:
    """That everyone may talk makes nobody trusted."""
    environ = {"channels__telegram__allow_from": let_in} if let_in else {}
    chats = Chats(tmp_path, **environ)
    await chats.use("add", every="1h", message="x", key=GROUP)

    result = await chats.use("remove", id=chats.rows()[0]["id"], key=GROUP, sender=BOB)

    assert result.is_error is not may
    assert (chats.rows() == []) is may


async def test_people_who_were_paired_change_what_others_made(chats: Chats) -> None:
    pairing = Pairing(chats.settings.state)
    code = pairing.ask("telegram", "2", kind="person", name="Bob", message_id="telegram:9:9")
    assert code is not None
    pairing.approve(code)
    await chats.use("add", every="1h", message="x", key=GROUP)

    assert not (await chats.use("remove", id=chats.rows()[0]["id"], key=GROUP, sender=BOB)).is_error


async def test_page_and_terminal_are_the_operators(chats: Chats) -> None:
    """What the command line made for them is changed there."""
    await chats.use("add", every="1h", message="x", key="web:a", sender={})
    result = await chats.use("remove", id=chats.rows()[0]["id"], key="web:a", sender={}, message_id="web:2")

    assert not result.is_error


async def test_a_turn_of_the_clock_adds_nothing_and_removes_itself_alone(chats: Chats) -> None:
    """Whatever stands in its message id: only its own job is changed, and a forged one of another is not."""
    await chats.use("add", every="1h", message="x")
    await chats.use("add", every="2h", message="y")
    one, two = (row["id"] for row in chats.rows())
    clock: dict[str, Any] = {"source": "cron", "sender": {}, "message_id": f"cron:{one}@2026-06-01T12:00:00Z"}

    added = await chats.use("add", every="1h", message="more", **clock)
    other = await chats.use("remove", id=two, **clock)
    nameless = await chats.use("remove", id=two, **{**clock, "message_id": "x"})
    itself = await chats.use("remove", id=one, **clock)

    assert [result.is_error for result in (added, other, nameless, itself)] == [True, True, True, False]
    assert [row["id"] for row in chats.rows()] == [two]


def test_a_subagent_is_offered_no_jobs(chats: Chats) -> None:
    at = ToolPlace(chats.workspace, "sub:01M82KPX05XQGTJVXRK6MR9B2D:1")

    assert chats.box.specs(["schedule"], at) == []
