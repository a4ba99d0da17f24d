"""A running gateway looks at the whole request before each call: what was counted, and what is asked now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.harness import Daemon, answer_to
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, with_model

WINDOW = 40_000


def config(model: ModelServer) -> dict[str, Any]:
    return with_model(model, **{"model.context_window": WINDOW, "memory.window": 1_000})


async def say(daemon: Daemon, key: str, first: int, stop: int, *, more: str = "") -> None:
    for number in range(first, stop):
        answer = await answer_to(daemon, key, f"{key}-{number}", f"short fact-{number:04} of {key}{more}")
        assert answer["kind"] == "reply", answer


def overlays(workspace: Path, stem: str) -> list[int]:
    """At which places of a transcript a summary stands."""
    return [at for at, line in enumerate(lines_of(workspace, stem)) if line.get("kind") == "overlay"]


async def test_every_request_is_weighed_whole(tmp_path: Path) -> None:
    """A message that alone is too long is seen before the call; so is what the provider alone finds long."""
    async with ModelServer() as model, Daemon(tmp_path, config=config(model)) as daemon:
        await say(daemon, "cli:long", 0, 20)
        long = await answer_to(daemon, "cli:long", "cli:long-20", "fact-0020 " + "0123456789" * 15_000)
        sent = model.turns[-1]

        await say(daemon, "cli:counted", 0, 6, more=" and some words" * 400)
        model.script.append(Reply(text="counted", usage=counted(WINDOW - 500)))
        await say(daemon, "cli:counted", 6, 7)
        before = overlays(tmp_path, "cli_counted")
        await say(daemon, "cli:counted", 7, 8)
        assert await daemon.stop() == 0

    assert long["kind"] == "reply", long
    assert overlays(tmp_path, "cli_long") == [41]
    assert "compacted into the following summary" in str(sent.messages[1]["content"])
    assert sent.text.startswith("fact-0020")

    assert before == []
    assert overlays(tmp_path, "cli_counted") == [15]


def counted(prompt: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3}
