"""``make chaos``: a few kills over the embedded queue, what it prints, and options that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chaos import PATIENCE_S, chaos, kept


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_few_kills_are_survived_and_told(tmp_path: Path) -> None:
    """Each guarantee is put to the test; nothing is broken, nothing stays but what was asked to be kept."""
    done = chaos("--kills", "6", "--seed", "11", "--keep", folder=tmp_path)

    assert done.returncode == 0, done.stderr + done.stdout
    assert "6 kills of daemons and 0 of the broker" in done.stdout
    assert done.stderr.startswith("6 kills over the embedded queue, seed 11\nseed 11: 6 kills")
    folder = kept(done)
    records = json.loads((folder / "records.json").read_text())
    assert [(each["name"], each["broken"]) for each in records["guarantees"]] == [
        (f"G{number}", []) for number in range(1, 8)
    ]
    assert all(repeat["cause"] for repeat in records["repeats"])
    assert records["calls"]
    assert records["sent_pieces"]
    assert all(update["handed"] and update["confirmed"] for update in records["updates"])
    assert {chat for chat, messages in records["sent"].items() if messages} >= {"eve", "finn"}
    assert "--- d0.7" in (folder / "d0.log").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kills", "0"), "--kills must be 1 or more"),
        (("--workers", "3"), "--workers 3: the embedded queue has no workers"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_made(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = chaos(*words, folder=tmp_path)

    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.glob("chat-gateway-chaos-*")) == []
