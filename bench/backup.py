"""A backup of a workspace of 1 GB: how long it takes beside ``cp -a``, and what the turns feel of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

import durable
from bench.application import application, letter, settings
from bench.application import run as run_loop
from bench.place import TEXT, folder
from bench.row import Row, median, quantile, times_slower
from gateway.cli.backup import stand_behind
from gateway.queue.mailbox import outbound
from session.transcript.line import make_line

CONVERSATIONS, BYTES, MEDIA = 4000, 200_000, 200
ROUNDS, CHATS, DELAY_S = 3, 8, 0.2
# Turns without and with a backup beside them take turns, for so long each.
WINDOW_S, PAIRS = 2.5, 6
AT = "2026-01-01T10:00:00.000000+00:00"


def run() -> list[Row]:
    """Copy it both ways by turns, then talk without and with a backup beside."""
    with folder() as here:
        workspace = here / "workspace"
        size = _write(workspace)
        ours, theirs = [], []
        for number in range(ROUNDS):
            theirs.append(_timed(here / "copy", lambda path: ["cp", "-a", str(workspace), str(path)]))
            ours.append(_timed(here / f"{number}.tar", lambda path: _backup(workspace, path)))
        calm, busy = run_loop(lambda: _turns(workspace, here / "beside.tar", DELAY_S))
        bare, pressed = run_loop(lambda: _turns(workspace, here / "beside.tar", 0.0))
    what = f"{size / 1e9:.2f} GB in {CONVERSATIONS:,} conversations and {MEDIA} files, in the page cache; "
    ratios = [mine / copied for mine, copied in zip(ours, theirs, strict=True)]
    return [
        Row(
            "backup of 1 GB",
            median(ours),
            median(theirs),
            "s",
            "cp -a",
            median(ratios),
            at_most=1.5,
            notes={
                "what": what
                + "the whole command, its own sync included, and a sync behind either; both behind all else",
                "samples": {"ours": ours, "peer": theirs},
            },
        ),
        times_slower(
            "turns beside it",
            median(busy),
            median(calm),
            "without",
            what=f"{CHATS} chats in turn, a model of {DELAY_S:g} s, embedded queue; "
            f"p95 {quantile(busy, 0.95) * 1e3:.0f} ms, without {quantile(calm, 0.95) * 1e3:.0f} ms",
            at_most=1.2,
        ),
        times_slower(
            "… of a model that takes no time",
            median(pressed),
            median(bare),
            "without",
            what=f"p95 {quantile(pressed, 0.95) * 1e3:.1f} ms, without {quantile(bare, 0.95) * 1e3:.1f} ms",
            at_most=1.2,
        ),
    ]


def _timed(target: Path, command: Callable[[Path], list[str]]) -> float:
    """Return how long a command takes until all is on disk; what it made is removed."""
    os.sync()
    began = time.perf_counter()
    # At the standing that a backup takes: beside other work on the machine the copy waits as long as it does.
    subprocess.run(command(target), check=True, capture_output=True, preexec_fn=stand_behind)
    os.sync()
    took = time.perf_counter() - began
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return took


def _backup(workspace: Path, target: Path) -> list[str]:
    return [sys.executable, "-m", "gateway", "--workspace", str(workspace), "backup", "create", str(target)]


def _write(workspace: Path) -> int:
    """Write conversations and attachments; return their bytes."""
    sessions, total = workspace / "sessions", 0
    sessions.mkdir(parents=True)
    lines, size, number = [b""], 0, 0
    while size < BYTES:
        id_ = f"web:{number:06}"
        lines.append(orjson.dumps(make_line("user", f"{number} {TEXT * 4}", AT, message_id=id_)))
        told = make_line("assistant", f"{number} {TEXT * 12}", AT, message_id=id_, final=True)
        lines.append(orjson.dumps(told))
        size += len(lines[-1]) + len(lines[-2])
        number += 1
    for chat in range(CONVERSATIONS):
        key = f"web:c{chat}"
        head = {"_type": "metadata", "key": key, "created_at": AT, "metadata": {}, "last_consolidated": 0}
        lines[0] = orjson.dumps(head)
        (sessions / f"web_c{chat}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        total += size
    for number in range(MEDIA):
        path = workspace / "media" / f"{number:02x}" / f"{number}.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(1_000_000))
    return total + MEDIA * 1_000_000


async def _turns(workspace: Path, target: Path, delay_s: float) -> tuple[list[float], list[float]]:
    """Return how long turns take without and with backups beside them, by turns."""
    config = settings(workspace, model__echo_delay_s=delay_s, facts__enabled=False)
    calm: list[float] = []
    busy: list[float] = []
    number = round(delay_s * 1e6)
    async with application(config) as here, here.mailbox.take(outbound("bench")) as replies:
        await _talk(here, replies, number, 2)
        number += 2
        for _ in range(PAIRS):
            for took in (calm, busy):
                going = asyncio.create_task(_again_and_again(workspace, target)) if took is busy else None
                end = time.perf_counter() + WINDOW_S
                while time.perf_counter() < end:
                    took += await _talk(here, replies, number, 1)
                    number += 1
                if going is not None:
                    going.cancel()
                    await asyncio.wait([going])
                    if not going.cancelled():
                        going.result()
    return calm, busy


async def _talk(here: Any, replies: Any, first: int, turns: int) -> list[float]:
    """Let all chats ask at once, round by round; return the seconds of each turn."""
    took = []
    for number in range(first, first + turns):
        began = time.perf_counter()
        puts = asyncio.gather(
            *(here.mailbox.put(letter(f"bench:{chat}", number, "hello")) for chat in range(CHATS))
        )
        for _ in range(CHATS):
            reply = await anext(replies)
            took.append(time.perf_counter() - began)
            await here.mailbox.settle(reply)
        await puts
    return took


async def _again_and_again(workspace: Path, target: Path) -> None:
    """Take one backup after the other, as from another terminal: a session of its own."""
    while True:
        process = await asyncio.create_subprocess_exec(
            *_backup(workspace, target),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            if code := await process.wait():
                raise RuntimeError(f"a backup ended with exit code {code}: nothing was beside the turns")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            # One that is killed leaves what it had.
            for left in target.parent.glob(f"*{target.name}*"):
                durable.discard(left)
