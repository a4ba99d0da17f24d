"""The archive that a compaction leaves behind is at hand in the very turn that it happened in."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from session.models.model import ToolCall
from session.store.store import Session
from session.tools import Toolbox
from session.tools.archives import SessionArchiveRead
from session.turn.turn import Request, TurnContext, Turns
from tests.session.compaction_talk import facts_of
from tests.session.compactions_place import Look, chat, limits

NAME = "session_archive_read"


async def test_what_a_summary_left_out_can_be_read_at_once(tmp_path: Path) -> None:
    """The next round of the turn has the tool, and its result holds the lines word for word."""
    async with chat(tmp_path, "archive") as place:

        async def around(session: Session, request: Request) -> TurnContext:
            return TurnContext(parts=(), files=tmp_path / "files", tools=("look", NAME))

        place.turns = Turns(
            model=place.model,
            toolbox=Toolbox([Look(), SessionArchiveRead(place.store.layout, zone=UTC)]),
            limits=limits(place.rules),
            zone=UTC,
            clock=lambda: datetime.now(UTC),
            turn_context=around,
            compactions=place.compactions,
        )
        while not place.model.summaries:
            offered = [spec.name for spec in place.model.prompts[-1].tools] if place.count else ["look"]
            assert offered == ["look"]
            place.model.calls = [[ToolCall(f"c{place.count}", NAME, "{}")]]
            await place.say()

        first, second = place.model.prompts[-2:]
        assert NAME in [spec.name for spec in first.tools]
        result = str(second.messages[-1]["content"])
        assert result.startswith("The earlier part of this conversation")
        assert "fact-0001" in facts_of(result)
        assert f"fact-{place.count:04}" not in facts_of(result)
