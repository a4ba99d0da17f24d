"""A benchmark whose peer broke, or whose load did, gives no figure: it ends in an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import backup, killed
from tests.support import peers

ENDS = [sys.executable, "-c", "raise SystemExit(3)"]
HEARS_AND_ENDS = [sys.executable, "-c", "import sys; sys.stdin.read(); raise SystemExit(3)"]


def test_a_peer_that_ends_by_itself_has_lost_nothing_by_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it did not answer would count against it."""

    def started(*_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(HEARS_AND_ENDS, stdin=subprocess.PIPE)

    monkeypatch.setattr(peers, "start", started)

    with pytest.raises(RuntimeError, match="by itself before it was killed, with exit code 3"):
        killed._nanobot(peers.NANOBOT_014_LOOP)


def test_a_relay_that_ends_by_itself_has_lost_nothing_by_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(ENDS)
        process.wait()
        return process

    async def nothing_comes(*_: object, **__: object) -> None:
        """Return as it does where no reply comes for a minute."""

    monkeypatch.setattr(killed, "_until", nothing_comes)

    with pytest.raises(RuntimeError, match="by itself before it was killed, with exit code 3"):
        killed._counted("amqp://nowhere", "out", started)


async def test_turns_beside_a_backup_that_fails_are_beside_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_backup", lambda *_: ENDS)

    with pytest.raises(RuntimeError, match="a backup ended with exit code 3"):
        await backup._again_and_again(tmp_path, tmp_path / "b.tar")
