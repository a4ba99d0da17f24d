"""kill -9 at each step of a turn of several messages: none is lost, none is answered twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.guarantee import guarantee

IDS = {"collect": ["m1", "m2", "m3"], "steer": ["m1", "m2"], "interrupt": ["m1", "m2"]}
# How often the model is asked where nobody dies.
ASKED = {"collect": 1, "steer": 2, "interrupt": 2}


def served(line: dict[str, Any]) -> list[str]:
    return list(line.get("answers", [line["message_id"]]))


def victims(folder: Path, mode: str) -> int:
    command = [sys.executable, "-m", "tests.gateway.modes_victim", str(folder), mode]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=170).stdout)


@guarantee(
    "loss", "A kill during a turn of several messages loses and repeats none of them, in every queue mode."
)
@pytest.mark.parametrize("mode", list(IDS))
def test_a_kill_at_any_step_loses_and_repeats_none(tmp_path: Path, mode: str) -> None:
    """Each message has one user line and is named by one answer, which is told once."""
    count = victims(tmp_path / "w", mode)

    together = 0
    for number in range(1, count + 1):
        ended = json.loads((tmp_path / f"w-{number}" / "ended.json").read_text())
        lines = ended["lines"]
        users = Counter(line["message_id"] for line in lines if line["role"] == "user")
        answers = [line for line in lines if line.get("final") and not line.get("stopped")]
        assert users == Counter(IDS[mode]), (number, lines)
        assert Counter(id_ for line in answers for id_ in served(line)) == Counter(IDS[mode]), (number, lines)
        told = [[f"{line['message_id']}#reply", line["content"]] for line in answers]
        assert sorted(ended["told"]) == sorted(told), (number, ended)
        assert len(ended["asked"]) <= ASKED[mode] + len(answers), (number, ended["asked"])
        together += len(answers) == 1
    assert count > 10
    # A life that was slow to take the second letter may have begun with the first alone.
    assert together >= count - 2


@guarantee(
    "failures", "Among messages that are answered together, only the one that crashes the gateway is parked."
)
def test_poison_among_collected_messages_is_parked_alone(tmp_path: Path) -> None:
    """Three deaths: two of the turn of all, after which each is asked alone, and one of the poison's own."""
    deaths = victims(tmp_path / "w", "poison")

    ended = json.loads((tmp_path / "w" / "ended.json").read_text())
    assert (deaths, ended["parked"]) == (3, ["m2"])
    replies = [told for told in ended["told"] if told[0].endswith("#reply")]
    assert replies == [["m1#reply", "about one"], ["m3#reply", "about three"]]
