"""kill -9 at each step of a subagent's life: it is started once, its result is told once, nothing stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "once",
    "A kill at any step of a subagent starts it once, reports it once, and leaves nothing of it behind.",
)


def ends(folder: Path, mode: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """What came of each child, by its number."""
    command = [sys.executable, "-m", "tests.gateway.subagents_victim", str(folder), mode]
    count = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=280).stdout)
    assert count > 20
    for number in range(1, count + 1):
        yield number, json.loads((folder.with_name(f"{folder.name}-{number}") / "ended.json").read_text())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "asked"), [("done", 4), ("refused", 4)])
def test_a_kill_at_any_step_starts_and_tells_nothing_twice(tmp_path: Path, mode: str, asked: int) -> None:
    """A kill costs at most the request that was under way, of the chat and of the subagent."""
    for number, ended in ends(tmp_path / "w", mode):
        lines = ended["lines"]
        users = [line["message_id"] for line in lines if line["role"] == "user"]
        assert len(users) == 2, (number, lines)
        assert users[0] == "m1"
        text = next(str(line["content"]) for line in lines if line["message_id"] == users[1])
        assert ("seven" if mode == "done" else "there is no result") in text
        assert [line["content"] for line in lines if line.get("final")] == ["begun", "heard"], number
        assert ended["told"] == [["m1#reply", "begun"], [f"{users[1]}#reply", "heard"]], (number, ended)
        assert len(ended["asked"]) <= asked + 2, (number, ended["asked"])
        assert (ended["states"], ended["left"]) == (["told"], []), (number, ended)


@pytest.mark.timeout(300)
def test_a_kill_at_any_step_of_its_end_brings_no_result(tmp_path: Path) -> None:
    """The conversation ends while it works: it ends, too, and nothing is ever heard of it."""
    for number, ended in ends(tmp_path / "w", "new"):
        assert [told[0] for told in ended["told"]] == ["m1#reply", "m2#reply"], (number, ended)
        assert not [line for line in ended["lines"] if "<subagent-result" in str(line["content"])], number
        assert (ended["states"], ended["left"]) == (["ended"], []), (number, ended)
