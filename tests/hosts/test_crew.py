"""``make chaos`` over a gateway with workers, which takes a minute."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.chaos import PATIENCE_S, chaos, kept


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_gateway_and_its_workers_are_killed_one_by_one(tmp_path: Path) -> None:
    """Each death is of the gateway or of a worker, and what was asked is told by the worker that asked it.

    The last is a worker's: its gateway goes on to the end.
    """
    words = ("--kills", "3", "--seed", "16", "--workers", "3", "--broker", "rabbitmq")
    done = chaos(*words, "--keep", folder=tmp_path)

    assert done.returncode == 0, done.stderr + done.stdout
    records = json.loads((kept(done) / "records.json").read_text())
    deaths = [harm["how"] for harm in records["harms"] if harm["kind"] == "kill" and harm["how"] != "stuck"]
    assert all(how.startswith(("the gateway", "a worker")) for how in deaths)
    log = (kept(done) / "d0.log").read_text()
    assert log.count("--- d0.") == deaths.count("the gateway") + 1
    assert records["calls"]
    assert all(re.fullmatch(r"d0\.\d+\.w\d+", call["life"]) for call in records["calls"])
