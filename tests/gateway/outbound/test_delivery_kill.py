"""The last hand-over under kill -9: every chunk arrives, and only what was in flight arrives twice."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from gateway.queue.mailbox import outbound
from tests.gateway.delivery_victim import CHATS, PIECES, SIZE, text_of
from tests.gateway.embedded_place import opened
from tests.support import forked
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "once", "A chunk that the platform accepted is never sent again, and an uncertain one only a few times."
)

LETTERS, KILLS = 60, 6
# For the starts of seven processes.
DEADLINE_S = 150.0


class Recorder:
    """A server that notes every line in the order of arrival, and kills its client at chosen ones."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.kill_at = 0
        self.victim: Process | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one line and answer it, unless this one is the victim's last."""
        line = (await reader.readline()).decode()
        # It was killed before it had written the whole line.
        if not line.endswith("\n"):
            writer.close()
            return
        chat, _, text = line.rstrip("\n").partition(" ")
        self.lines.append((chat, text))
        if self.kill_at and len(self.lines) >= self.kill_at and self.victim is not None:
            self.kill_at = 0
            self.victim.send_signal(signal.SIGKILL)
        writer.write(f"m{len(self.lines)}\n".encode())
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()


async def lines_until(stream: asyncio.StreamReader, last: bytes) -> AsyncIterator[bytes]:
    """Read until the end, or a line that is ``last``."""
    async for line in stream:
        yield line
        if line == last:
            return


async def test_kill_at_any_instant(tmp_path: Path) -> None:
    """Killed six times in mid-send: each chunk arrives, at most one per chat and kill twice, in order."""
    chance, recorder, folder = random.Random(11), Recorder(), tmp_path / "state"
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(DEADLINE_S):
        for life in range(KILLS + 1):
            if life < KILLS:
                recorder.kill_at = len(recorder.lines) + chance.randrange(2, 24)
            command = ("-m", "tests.gateway.delivery_victim", str(folder), str(port), str(LETTERS))
            victim = await forked.spawn(sys.executable, *command, stdout=PIPE)
            recorder.victim = victim
            assert victim.stdout is not None
            said = [line async for line in lines_until(victim.stdout, b"done\n")]
            if life == KILLS:
                assert b"done\n" in said
                victim.kill()
            assert await victim.wait() == -signal.SIGKILL

    async with opened(folder) as mailbox:
        parked = {letter.id: letter.reason for letter in await mailbox.parked()}
        assert outbound("wire") not in await mailbox.depths()
    assert set(parked.values()) <= {"unknown"}
    check(recorder.lines, {int(id_.removeprefix("wire:").removesuffix("#reply")) for id_ in parked})


def check(lines: list[tuple[str, str]], parked: set[int]) -> None:
    """Compare what arrived with what was put."""
    times = Counter(text for _, text in lines)
    for number in set(range(LETTERS)) - parked:
        text = text_of(number)
        assert all(times[text[at : at + SIZE]] >= 1 for at in range(0, SIZE * PIECES, SIZE)), number
    assert max(times.values()) <= 2
    assert sum(count - 1 for count in times.values()) <= KILLS * CHATS
    for chat in range(CHATS):
        first_seen = list(dict.fromkeys(text for name, text in lines if name == f"chat{chat}"))
        assert first_seen == sorted(first_seen, key=lambda text: [int(w) for w in _numbers(text)])


def _numbers(text: str) -> tuple[str, str]:
    words = text.rstrip(".").split()
    return words[1], words[3]
