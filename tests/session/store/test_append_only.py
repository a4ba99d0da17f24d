"""What stands behind line 1 of a transcript is never changed again: a later file begins with it."""

from __future__ import annotations

from datetime import UTC
from itertools import pairwise
from pathlib import Path
from typing import Any

from session.models.model import Answer, ToolCall
from session.store.store import Session, Store
from session.tools import Toolbox
from session.tools.files import Ls
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from session.turn.turn import Request, StopSwitch, TurnContext, TurnLimits, Turns
from tests.contracts.models import Script

ADA = SessionKey("cli:ada")
AT = "2026-03-01T10:00:00.000001+00:00"


async def test_a_transcript_only_grows(tmp_path: Path) -> None:
    """Over turns with tools, edits, withdrawals, a new line 1 and a restart."""

    async def around(session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=tmp_path / "files", tools=("ls",))

    call = Answer("", tool_calls=[ToolCall("c1", "ls", '{"path": "."}')], finish="tool_calls")
    model = Script(["first", call, "third"])
    bodies: list[bytes] = []
    for opened in range(2):
        store = Store(tmp_path, zone=UTC)
        turns = Turns(
            model=model,
            toolbox=Toolbox([Ls()]),
            limits=TurnLimits(),
            zone=UTC,
            clock=store.clock,
            turn_context=around,
        )

        def note(path: Path) -> None:
            bodies.append(path.read_bytes().partition(b"\n")[2])

        async with store.open(ADA) as session:
            for number in range(3):
                request = Request(f"m{opened}{number}", ADA, f"question {number}")
                await turns.run(session, request, stop=StopSwitch())
                note(session.path)
            await session.append([record("note", edits="m00")])
            note(session.path)
            await session.append([record("undo", **{"from": 2})])
            note(session.path)
            await session.checkpoint(metadata={"name": "a name"}, last_consolidated=2)
            note(session.path)
        await store.aclose()

    assert len(set(bodies)) == 10
    for before, after in pairwise(bodies):
        assert after.startswith(before)


def record(kind: str, **fields: Any) -> dict[str, Any]:
    return make_line("system", "", AT, kind=kind, **fields)
