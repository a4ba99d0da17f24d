"""The table of line 1's fields knows every field that is written, and each one goes where it says."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.http.sessions import PatchIn
from session.background.adoption import adopt
from session.context.scopes import ANSWERS, CHAT
from session.interchange.conversation import Conversation
from session.store import rollover
from session.store.rollover import FIELDS, for_the_compacted, for_the_next, for_the_reopened, roll_over
from session.store.store import Session, Store
from session.transcript.agent import AGENT
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.store_place import compact

KEY = SessionKey("telegram:1")
ROOT = Path(__file__).parents[3]
# What no literal names: a chat's audience by its constant, a name and instructions by the body of a request.
NAMED_ELSEWHERE = {AGENT, ANSWERS, CHAT, *PatchIn.model_fields}


def seen_in(store: Store) -> set[str]:
    """The names in the metadata of every line 1 below ``sessions/``."""
    names = set[str]()
    for path in store.layout.sessions.rglob("*.jsonl"):
        head: dict[str, Any] = json.loads(path.read_bytes().partition(b"\n")[0])
        names.update(head["metadata"])
    return names


async def talk(session: Session, id_: str) -> None:
    at = session.clock().isoformat(timespec="microseconds")
    asked = make_line("user", id_, at, message_id=id_)
    await session.append([asked, make_line("assistant", "yes", at, message_id=id_, answers=[id_])])


async def every_change(store: Store) -> set[str]:
    """Write sessions in every way; return the names of all fields that were seen on the way."""
    async with store.open(KEY) as session:
        await talk(session, "1")
        names = seen_in(store)
        await session.end()
        await talk(session, "2")
        await session.change(lambda *writers: rollover.split_after_idle(*writers, by="3", due=lambda _: True))
        names |= seen_in(store)
        await talk(session, "3")
        await session.change(
            lambda *writers: roll_over(*writers, first_kept=1, record=compact, still=lambda _: True)
        )
        names |= seen_in(store)
        ended = str(session.metadata["previous_session"])
        await session.change(lambda *writers: rollover.reopen(*writers, session_id=ended))
        names |= seen_in(store)
    async with store.open(SessionKey("cron:job")) as session:
        await talk(session, "4")
    line = make_line("user", "from elsewhere", "2026-01-01T10:00:00+00:00")
    other = Conversation(lines=(line,))
    assert await adopt(store, SessionKey("web:ada"), other, session_id="01K0000000000000000000000A")
    return names | seen_in(store)


def written_by_literals() -> Iterator[str]:
    """The fields of every literal that is handed to what changes line 1."""
    for path in [*(ROOT / "session").rglob("*.py"), *(ROOT / "gateway").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("checkpoint", "remember", "end", "archive", "merged", "renew", "go_on"):
                given = [*node.args, *(word.value for word in node.keywords)]
                for literal in (value for value in given if isinstance(value, ast.Dict)):
                    yield from (
                        key.value
                        for key in literal.keys
                        if isinstance(key, ast.Constant) and isinstance(key.value, str)
                    )


async def test_every_field_that_is_written_is_in_the_table(store: Store) -> None:
    """A field that is new has its place in the table before it is written, and the table has no other."""
    seen = await every_change(store)
    literals = set(written_by_literals())

    assert seen <= FIELDS.keys()
    assert literals <= FIELDS.keys()
    # A model writes a summary into an ended session, in words of its own.
    assert seen | literals | NAMED_ELSEWHERE | {"summary"} == FIELDS.keys()


@pytest.mark.parametrize(
    ("lasting", "after_new", "after_compaction", "reopened"),
    [
        ("stays", True, True, True),
        ("renewed", True, True, True),
        ("goes_on", False, True, True),
        ("ends", False, False, True),
        ("reopens", False, False, False),
    ],
)
def test_a_field_lasts_as_the_table_says(
    lasting: str, *, after_new: bool, after_compaction: bool, reopened: bool
) -> None:
    """Each kind of field is handed on by what may hand it on, and by nothing else."""
    inner = {name: name for name, kind in FIELDS.items() if kind == lasting}

    assert inner
    assert for_the_next(inner) == (inner if after_new else {})
    assert for_the_compacted(inner) == (inner if after_compaction else {})
    assert for_the_reopened(inner) == (inner if reopened else {})


def test_a_field_of_another_program_is_handed_on() -> None:
    """What we do not know is not ours to drop."""
    foreign = {"colour": "blue"}

    assert for_the_next(foreign) == for_the_compacted(foreign) == for_the_reopened(foreign) == foreign
