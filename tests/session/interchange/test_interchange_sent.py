"""What a model is sent of a conversation that came from another program with a summary in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session.background.adoption import adopt, of_view
from session.interchange.conversation import Conversation
from session.interchange.formats import FORMATS
from session.transcript.history import SUMMARY_HEAD, SUMMARY_TAIL, last_exchange
from tests.session.compactions_place import KEY, Chat, chat

NEW = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"
HEADER = {"type": "header", "chatId": "8304042211", "agentId": "annabelle", "version": 1}
COMPACTION = {"type": "compaction", "summary": "They asked for mails.", "compactedTurns": 25}


def turn(user: str, assistant: str) -> dict[str, Any]:
    return {"type": "turn", "user": user, "assistant": assistant, "timestamp": "2026-02-11T02:31:00Z"}


BEFORE, AFTER = [turn("q0", "a0"), turn("q1", "a1")], [turn("q2", "a2")]


def came_from(*records: dict[str, Any]) -> Conversation:
    data = b"".join(json.dumps(record).encode() + b"\n" for record in (HEADER, *records))
    (found,) = FORMATS["annabelle"].decode({"8304042211.jsonl": data})
    return found


async def sent(place: Chat, conversation: Conversation) -> list[object]:
    assert await adopt(place.store, KEY, conversation, session_id=NEW)
    await place.say("now")
    return [message["content"] for message in place.model.prompts[-1].messages if message["role"] != "system"]


@pytest.mark.parametrize("preset", ["overlay", "budget", "annabelle"])
@pytest.mark.parametrize("before", [[], BEFORE], ids=["opens the file", "behind turns"])
@pytest.mark.parametrize("after", [[], AFTER], ids=["ends the file", "before a turn"])
async def test_a_compaction_opens_the_history_and_what_follows_it_is_sent(
    tmp_path: Path, before: list[dict[str, Any]], after: list[dict[str, Any]], preset: str
) -> None:
    async with chat(tmp_path, preset) as place:
        summary, *rest, newest = await sent(place, came_from(*before, COMPACTION, *after))

        assert "They asked for mails." in str(summary)
        assert str(summary).startswith(SUMMARY_HEAD) == (preset != "budget")
        assert str(summary).endswith(SUMMARY_TAIL)
        assert rest == (["q2", "a2"] if after else [])
        assert str(newest).endswith("now")


async def test_the_newest_of_several_compactions_counts(tmp_path: Path) -> None:
    newer = {**COMPACTION, "summary": "They booked a flat."}

    async with chat(tmp_path) as place:
        found = await sent(place, came_from(*BEFORE, COMPACTION, *BEFORE, newer, *AFTER))

        assert "They booked a flat." in str(found[0])
        assert found[1:3] == ["q2", "a2"]
        assert "They asked for mails." not in place.told()
        # Memory still takes in what the summary stands for.
        view = await place.store.look(KEY)
        assert view.last_consolidated == 0
        assert [line["content"] for line in view.lines(0, 4)] == ["q0", "a0", "q1", "a1"]


async def test_the_next_compaction_takes_the_imported_summary_in(tmp_path: Path) -> None:
    async with chat(tmp_path) as place:
        await sent(place, came_from(*BEFORE, COMPACTION, *AFTER))
        while not place.model.summaries:
            await place.say()

        asked = json.dumps([*place.model.summaries[0].messages])
        assert "They asked for mails." in asked
        assert "q2" in asked
        assert "q1" not in asked


async def test_undo_takes_nothing_back_from_before_the_summary(tmp_path: Path) -> None:
    async with chat(tmp_path) as place:
        await adopt(place.store, KEY, came_from(*BEFORE, COMPACTION), session_id=NEW)
        transcript = (await place.store.look(KEY)).transcript

        assert last_exchange(transcript.messages, transcript.index.records, history_start=0) is None


@pytest.mark.parametrize("name", ["annabelle", "overlay", "nanobot"])
async def test_it_goes_out_again_as_it_came(tmp_path: Path, name: str) -> None:
    async with chat(tmp_path) as place:
        await adopt(place.store, KEY, came_from(COMPACTION, *AFTER), session_id=NEW)
        out = FORMATS[name].encode(of_view(await place.store.look(KEY)))
        await place.store.clear(KEY)

        (found,) = FORMATS[name].decode(out.files)
        summary, *rest = await sent(place, found)
        assert "They asked for mails." in str(summary)
        assert rest[:2] == ["q2", "a2"]
