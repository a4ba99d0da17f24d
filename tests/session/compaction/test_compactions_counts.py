"""What a provider counts decides, where it is more than our own estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from session.models.model import Answer, OnDelta, Prompt, Usage
from tests.session.compaction_talk import filled
from tests.session.compactions_place import Talker, chat

WINDOW = 10_000


class Counter(Talker):
    """Counts what it is told to, if anything."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: int | None = None

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        answer = await super().ask(prompt, on_delta)
        return answer if self.counts is None else replace(answer, usage=Usage(self.counts, 10))


@pytest.mark.parametrize("preset", ["overlay", "archive"])
@pytest.mark.parametrize("counts", [8_600, 9_950])
async def test_a_count_over_the_trigger_compacts_however_short_the_text_is(
    tmp_path: Path, preset: str, counts: int
) -> None:
    """Behind the turn while it fits, else before the call; at most half of what we think is kept."""
    numbers = {"window": WINDOW, "keep_recent_tokens": 2_500, "reserve_tokens": 1_500}
    model = Counter()
    async with chat(tmp_path, preset, model=model, **numbers) as place:
        for _ in range(4):
            await place.say()
        model.counts = counts
        await place.say()
        assert await place.kinds() == []

        await place.say()

        assert await place.kinds() == (["compact"] if preset == "archive" else ["overlay"])
        assert len(model.summaries) == 1


@pytest.mark.parametrize("preset", ["overlay", "archive"])
async def test_the_message_that_is_asked_is_weighed(tmp_path: Path, preset: str) -> None:
    """Short messages, then one that is over the trigger by itself: those before it leave."""
    async with chat(tmp_path, preset, window=WINDOW) as place:
        for _ in range(4):
            await place.say()

        await place.say(filled("fact-0099;", 9_800))

        assert await place.kinds() == (["compact"] if preset == "archive" else ["overlay"])
        assert "fact-0001;" not in place.told()
        assert "fact-0099;" in place.told()
