"""Each place of a workspace has its stage in a backup: a new kind of file cannot be forgotten."""

from __future__ import annotations

import pytest

from gateway.backup.stages import STAGES, Stage, stage_of
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
