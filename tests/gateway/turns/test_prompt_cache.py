"""What a turn with many rounds costs at a provider that bills as Anthropic does, with marks and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from session.models.model import Warms
from tests.gateway.http_place import open_place
from tests.support.model_replies import Reply, Seen
from tests.support.model_server import ModelServer

ROUNDS = 20
RESULT = "a line of a file\n" * 60
MODEL = "openrouter/anthropic/claude-sonnet-4.5"


class Bill:
    """Counts input as Anthropic does: a marked prefix costs 1.25 to write and 0.1 to read."""

    def __init__(self) -> None:
        self.cost = 0.0
        self.marks: list[int] = []
        self._cached: set[str] = set()

    def add(self, seen: Seen) -> dict[str, Any]:
        """Bill a request; return its counts as OpenRouter writes them."""
        ends: list[int] = []
        text = json.dumps(seen.body.get("tools"))
        for message in seen.messages:
            content = message.get("content")
            blocks = content if isinstance(content, list) else [{"text": content}]
            text += message["role"] + json.dumps(message.get("tool_calls"))
            for block in blocks:
                text += str(block.get("text"))
                if "cache_control" in block:
                    ends.append(len(text))
        self.marks.append(len(ends))
        read = max((end for end in range(len(text), 0, -1) if text[:end] in self._cached), default=0)
        written = max([0, *ends]) - read if ends else 0
        self._cached |= {text[:end] for end in ends}
        self.cost += 0.1 * read + 1.25 * max(written, 0) + (len(text) - read - max(written, 0))
        details = {"cached_tokens": read // 4, "cache_write_tokens": max(written, 0) // 4}
        return {
            "prompt_tokens": len(text) // 4,
            "completion_tokens": 1,
            "total_tokens": len(text) // 4 + 1,
            "prompt_tokens_details": details,
        }


async def billed(folder: Path, *, cache: bool) -> Bill:
    bill = Bill()
    async with ModelServer() as model:

        def chooses(seen: Seen) -> Reply:
            usage = bill.add(seen)
            if len(model.seen) < ROUNDS:
                return Reply(tool_calls=[("read", '{"path": "a.txt"}')], usage=usage)
            return Reply(text="done", usage=usage)

        model.chooses = chooses
        table = {"name": MODEL, "api_base": model.url, "api_key": "k", "cache": cache}
        async with open_place(folder, model=table) as place:
            services = place.application.services
            assert services is not None
            assert isinstance(services.model, Warms)
            await services.model.warm()
            files = folder / "files"
            files.mkdir(parents=True, exist_ok=True)
            (files / "a.txt").write_text(RESULT)
            answer = (await place.post("read it all", wait=60)).json()
    assert answer["reply"] == "done", answer
    return bill


async def test_a_long_tool_turn_costs_a_third(tmp_path: Path) -> None:
    """With at most four marks in a request; ``model.cache = false`` sends none."""
    marked = await billed(tmp_path / "a", cache=True)
    plain = await billed(tmp_path / "b", cache=False)

    assert len(marked.marks) == len(plain.marks) == ROUNDS
    assert all(0 < marks <= 4 for marks in marked.marks)
    assert set(plain.marks) == {0}
    print(f"ratio {marked.cost / plain.cost:.3f}")
    assert marked.cost <= 0.35 * plain.cost
