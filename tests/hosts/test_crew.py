"""The verb ``chaos`` over a gateway with workers, which takes a minute."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.chaos import PATIENCE_S, chaos

STUCK = "a worker that stood still, by its gateway"


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_gateway_and_its_workers_are_killed_one_by_one(broker: Broker, tmp_path: Path) -> None:
    """Each death is of the gateway or of a worker, and what was asked is told by the worker that asked it.

    The last is a worker's: its gateway goes on to the end.
    """
    words = ("--kills", "3", "--seed", "16", "--workers", "2", "--platform", "none")
    done = chaos(*words, "--url", broker.vhost("crew"), "--json", "--keep", folder=tmp_path)

    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [each["broken"] for each in told["guarantees"]] == [[]] * 7
    assert (told["workers"], told["platform"], told["platform_messages"]) == (2, "none", 0)
    assert {name for name in told["deaths"] if name != "broker"} <= {"the gateway", "a worker", STUCK}
    kept = Path(told["folder"]) / "seed-16"
    lives = [line for line in (kept / "d0.log").read_text().splitlines() if line.startswith("--- ")]
    assert len(lives) == told["deaths"]["the gateway"] + 1
    records = json.loads((kept / "records.json").read_text())
    assert records["calls"]
    assert all(re.fullmatch(r"d0\.\d+\.w\d+", call["life"]) for call in records["calls"])
