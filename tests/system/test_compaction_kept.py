"""What a compaction keeps stands in the session that ended and in the new one, and is noted once."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer
from tests.support.until import until

KEY = "cli:ada"


async def say(daemon: Daemon, number: int) -> None:
    answer = await ask(daemon, KEY, f"cli:{number}", f"fact-{number:04} {'a word and ' * 60}")
    assert answer is not None
    assert answer["kind"] == "reply", answer


def noted(model: ModelServer) -> list[str]:
    """The facts of people that consolidation has shown to the model, in order."""
    shown = "\n".join(
        seen.text.partition("## Conversation")[2]
        for seen in model.seen
        if seen.text.startswith("## MEMORY.md")
    )
    return re.findall(r"USER: (fact-\d{4})", shown)


async def test_an_ended_session_is_whole_and_what_is_kept_is_noted_once(tmp_path: Path) -> None:
    """Preset ``annabelle``: the last two turns follow the summary, and end the archive as well."""
    async with ModelServer() as model:
        config = {
            "model.name": "openai/stub",
            "model.api_base": model.url,
            "compaction.preset": "annabelle",
            "compaction.max_chars": 6_000,
            "compaction.min_turns": 3,
            "compaction.keep_recent_turns": 2,
            "compaction.cooldown_s": 10_000,
        }
        async with Daemon(tmp_path, config=config) as daemon:
            count = 0
            while not model.summing.is_set():
                await say(daemon, count)
                count += 1
            await daemon.said("compaction.done")
            await say(daemon, count)
            [ended] = (tmp_path / "sessions" / "archive" / "cli_ada").glob("*.jsonl")
            archived = ended.read_bytes().splitlines()[1:]
            active = (tmp_path / "sessions" / "cli_ada.jsonl").read_bytes().splitlines()[1:]
            await ask(daemon, KEY, "cli:new", "/new")
            facts = [f"fact-{number:04}" for number in range(count + 1)]
            await until(lambda: set(facts) <= set(noted(model)), within_s=120)
            assert await daemon.stop() == 0
        found = noted(model)

    # A turn that ran beside the summary stands in the new session alone.
    ended_turns = len(archived) // 2
    asked = [json.loads(line)["content"][:9] for line in archived[::2]]
    assert asked == facts[:ended_turns]
    assert json.loads(active[0])["kind"] == "compact"
    assert active[1:5] == archived[-4:]
    assert len(active) == 1 + 4 + 2 * (len(facts) - ended_turns)
    assert sorted(found) == facts
