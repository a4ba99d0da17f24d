"""Three gateways on hosts of their own share a state database: one works, two wait for its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.hosts import apart, why_not
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "writer", "A gateway that is killed, frozen or cut off is taken over, and writes nothing any more."
)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.timeout(400)
def test_a_gateway_that_is_killed_frozen_or_cut_off_is_taken_over(tmp_path: Path) -> None:
    """Each message is answered once, in its order, whichever gateway worked when it came."""
    done = apart("tests.hosts.parted_hosts", str(tmp_path))

    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.pop("messages") > 100
    assert not any(said.values()), said
