"""Each place of a workspace has its stage in a backup: a new kind of file cannot be forgotten."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.discord.ingress import Cursors
from channels.storage import Positions, change_rows, positions_of
from gateway.backup import creation, restoring
from gateway.backup.creation import STAGES, Stage, stage_of
from gateway.outbound.send_log import sent_for
from session.store import places
from tests.support.guarantee import guarantee

pytestmark = guarantee("storage", "Every kind of file in a workspace has its place in a backup.")


def test_every_place_has_a_stage_and_every_stage_a_place() -> None:
    known = {*(place.pattern for place in places.PLACES), *places.ELSEWHERE}

    assert set(STAGES) == known


def test_what_is_derived_or_of_a_process_is_left_out_and_nothing_else_of_a_chat() -> None:
    for place in places.PLACES:
        left_out = STAGES[place.pattern] is Stage.LEFT_OUT
        is_log = place.pattern.endswith(".db-*")
        is_guard = place.use == "guard" and not place.pattern.startswith(
            ("state/keys", "state/subagents/state")
        )
        assert left_out == (place.use == "derived" or is_log or is_guard), place.pattern


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("cron/jobs.json", Stage.SOURCES),
        ("state/gateway.db", Stage.QUEUE),
        ("state/gateway.db-wal", Stage.LEFT_OUT),
        ("state/lock", Stage.LEFT_OUT),
        ("state/memory/chats/telegram_1.json", Stage.MEMORY_STATE),
        ("state/memory/chats/telegram_1.lock", Stage.LEFT_OUT),
        ("state/memory/workspace.lock", Stage.LEFT_OUT),
        ("state/channels.db", Stage.SEND_LOG),
        ("state/vectors.db", Stage.LEFT_OUT),
        ("memory/people/ada/.MEMORY.md.0.tmp", Stage.LEFT_OUT),
        ("chat-gateway.toml", Stage.LEFT_OUT),
        ("notes of somebody.txt", Stage.REST),
    ],
)
def test_a_path_is_copied_in_its_stage(path: str, stage: Stage) -> None:
    assert stage_of(path) is stage


async def test_cursors_are_those_of_the_beginning_and_the_send_log_is_that_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came while the queue was copied is read again, and no reply is sent twice."""
    workspace, state = tmp_path / "w", tmp_path / "w" / "state"
    cursors = await Cursors.open(state, "5", lambda: datetime(2026, 1, 1, tzinfo=UTC))
    await cursors.remember("10", "ada")
    at_first = dict(cursors.known)

    def meanwhile(of: Path) -> Positions:
        found = positions_of(of)
        change_rows(of, lambda file: file.execute("UPDATE cursors SET read_to = read_to + 1").rowcount)
        sent = "INSERT INTO sends VALUES ('discord:10', 'discord:1#reply', 1, 2, NULL, NULL)"
        change_rows(of, lambda file: file.execute(sent).rowcount)
        return found

    monkeypatch.setattr(creation, "positions_of", meanwhile)
    creation.create(workspace, tmp_path / "a.tar", embedded=True)
    restoring.restore(tmp_path / "a.tar", tmp_path / "new")

    again = await Cursors.open(tmp_path / "new" / "state", "5", lambda: datetime.now(UTC))
    assert (again.known, again.direct) == (at_first, {"10": "ada"})
    assert len(sent_for(tmp_path / "new" / "state", "discord:1")) == 1
