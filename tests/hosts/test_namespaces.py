"""A host is parted from the broker by a network that tells nobody: it is taken over, and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.hosts import apart, why_not
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "writer", "A process that is cut off from the broker writes nothing to chats that another one took over."
)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_parted_daemon_writes_nothing_and_takes_its_share_again(tmp_path: Path) -> None:
    """The other one ends its turns, it meets the fence; joined again each has two partitions of four."""
    done = apart("tests.hosts.parted_hosts", str(tmp_path))

    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    texts = {
        chat: [f"{chat}-0", f"echo: {chat}-0", f"{chat}-1", f"echo: {chat}-1"] for chat in said["stored"]
    }
    assert len(texts) == 4
    assert said["stored"] == texts
    assert said["told"] == sorted(text for each in texts.values() for text in each[1::2])
    assert said["fenced"] == [2, 0]
    assert said["replied"] == [2, 6]
