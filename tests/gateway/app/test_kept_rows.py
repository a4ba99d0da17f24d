"""Whose a row of ``cron/jobs.json`` is: that of the chat which it answers, whatever id another one has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app.erasure import TORN as TOLD
from gateway.app.erasure import answering, jobs_of, remove_jobs
from session.kept.subject import Conversation, Subject
from tests.gateway.erasing_place import ADA, BOB, eraser
from tests.support.place import write

EVERY = {"kind": "every", "everyMs": 3_600_000}


def job(id_: object, to: object, message: str, **fields: Any) -> dict[str, Any]:
    channel = "telegram" if to else None
    payload = {"kind": "agent_turn", "message": message, "deliver": bool(to), "channel": channel, "to": to}
    return {"id": id_, "name": message, "schedule": EVERY, "payload": payload, **fields}


def put(workspace: Path, *rows: object) -> None:
    write(workspace / "cron" / "jobs.json", json.dumps({"version": 1, "jobs": rows}))


def messages(workspace: Path) -> list[str]:
    found = json.loads((workspace / "cron" / "jobs.json").read_bytes())
    return [row["payload"]["message"] for row in found["jobs"]]


async def exported(workspace: Path, key: str) -> list[str]:
    async with eraser(workspace) as (erasure, _):
        subject = await erasure.subject(key=key)
    return [row["payload"]["message"] for row in jobs_of(workspace, subject)]


async def erased(workspace: Path, key: str) -> int:
    async with eraser(workspace) as (erasure, _):
        done, _ = await erasure.key(key)
    return done.removed["schedule"].count if "schedule" in done.removed else 0


async def test_of_two_jobs_of_one_id_the_one_that_answers_the_chat_goes(tmp_path: Path) -> None:
    """The second cannot run; it holds words of its chat all the same, and is no reason to take the first."""
    put(tmp_path, job("j1", "1", "for Ada"), job("j1", "2", "for Bob"), job("j1", 2, "for Bob, too"))

    assert await exported(tmp_path, ADA) == ["for Ada"]
    assert await exported(tmp_path, BOB) == ["for Bob", "for Bob, too"]
    assert await erased(tmp_path, BOB) == 2

    assert messages(tmp_path) == ["for Ada"]
    assert await erased(tmp_path, BOB) == 0
    assert await erased(tmp_path, ADA) == 1
    assert messages(tmp_path) == []


async def test_the_conversation_of_an_id_is_that_of_the_job_which_could_run(tmp_path: Path) -> None:
    put(tmp_path, job("j1", "1", "for Ada"), job("j1", "2", "for Bob"), job("j2", None, "of its own"))
    assert answering(tmp_path) == {"cron:j1": ADA}


async def test_a_job_without_a_chat_keeps_its_id_from_a_copy_that_has_one(tmp_path: Path) -> None:
    put(tmp_path, job("j1", None, "of nobody"), job("j1", "2", "for Bob"))

    assert await erased(tmp_path, BOB) == 1

    assert messages(tmp_path) == ["of nobody"]


@pytest.mark.parametrize(
    "row",
    [
        job("j9", "2", "for Bob", schedule=None),
        job("", "2", "for Bob"),
        job(7, "2", "for Bob"),
        job(["x"], 2, "for Bob"),
        {"payload": {"message": "for Bob", "originChannel": "telegram", "originChatId": "2"}},
    ],
)
async def test_what_cannot_run_goes_with_the_chat_that_it_names(tmp_path: Path, row: object) -> None:
    """Also one whose id is none."""
    put(tmp_path, job("j1", "1", "for Ada"), row)

    assert await exported(tmp_path, BOB) == ["for Bob"]
    assert await erased(tmp_path, BOB) == 1

    assert messages(tmp_path) == ["for Ada"]


@pytest.mark.parametrize("origin", [("cron", "j1"), (None, None)])
@pytest.mark.parametrize("enabled", [True, "perhaps"])
def test_a_row_that_names_no_chat_goes_with_the_id_that_is_the_subjects(
    tmp_path: Path, enabled: object, origin: tuple[str | None, str | None]
) -> None:
    """It answers into the conversation of its id; an erasure that was begun before still knows the id."""
    row = job("j1", None, "into its own", enabled=enabled)
    row["payload"] |= dict(zip(("originChannel", "originChatId"), origin, strict=True))
    put(tmp_path, row, job("j2", None, "of nobody"))
    conversations = (Conversation(BOB, "telegram_2"), Conversation("cron:j2", "cron_j2"))
    subject = Subject(BOB, False, conversations, (), ("j1",), {})

    assert [row["id"] for row in jobs_of(tmp_path, subject)] == ["j1"]
    assert remove_jobs(tmp_path, subject) == 1

    assert messages(tmp_path) == ["of nobody"]


async def test_a_file_of_a_newer_version_is_no_hindrance_to_whom_it_does_not_name(tmp_path: Path) -> None:
    put(tmp_path, job("j1", "1", "for Ada"))
    path = tmp_path / "cron" / "jobs.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    before = path.read_bytes()

    assert await erased(tmp_path, BOB) == 0

    assert path.read_bytes() == before


TORN = '{"version": 9, "jobs": [%s,\n{"id": "j2", "payload": {"message": "for Bob", "to": %s'


@pytest.mark.parametrize("to", ['"2"', "2"])
@pytest.mark.parametrize("text", [TORN, '{"jobs": {"a": [%s, {"message": "for Bob", "to": %s}]}}'])
async def test_what_stands_torn_in_a_damaged_file_is_named(tmp_path: Path, text: str, to: str) -> None:
    """Nobody can take out of it what is Bob's; Ada's jobs would go with a file that is removed whole."""
    put(tmp_path)
    path = tmp_path / "cron" / "jobs.json"
    path.write_text(text % (json.dumps(job("j1", "7", "for Cleo")), to))
    before = path.read_bytes()

    async with eraser(tmp_path) as (erasure, _):
        bob, _ = await erasure.key(BOB)
        ada, _ = await erasure.key(ADA)

    assert path.read_bytes() == before
    assert [words for words in bob.stays if words.startswith("cron/jobs.json")] == [
        TOLD.format("cron/jobs.json")
    ]
    assert not [words for words in ada.stays if words.startswith("cron/")]


async def test_changes_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """They may hold words of the chat; once they can be read, another call takes those out."""
    put(tmp_path, job("j1", "2", "for Bob"))
    (tmp_path / "cron" / "action.jsonl").mkdir()

    async with eraser(tmp_path) as (erasure, _):
        done, _ = await erasure.key(BOB)

    assert messages(tmp_path) == []
    assert TOLD.format("cron/action.jsonl") in done.stays
