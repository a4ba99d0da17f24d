"""The examples of ``docs/http.md``, run as they stand there against a whole gateway."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.docs.page import read
from tests.support.harness import ROOT, Daemon
from tests.support.until import until

PAGE = ROOT / "docs" / "http.md"
TOKEN = "correct-horse-battery-staple"
ULID = "01M82KPX05XQGTJVXRK6MR9B2D"
JOB = "701386d9"


def examples() -> list[tuple[str, list[Any]]]:
    """Read the commands that have their output below them; the output line by line."""
    code = read(PAGE).code
    return [
        (command.text, [json.loads(line) for line in shown.text.splitlines()])
        for command, shown in itertools.pairwise(code)
        if command.language == "sh" and shown.language == "jsonl"
    ]


class Shell:
    """Runs the commands of the page, one after the other, with the names that are the gateway's to choose."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self._environment = os.environ | {
            "URL": url,
            "TOKEN": TOKEN,
            "AUTH": f"Authorization: Bearer {TOKEN}",
        }
        self._names: dict[str, str] = {}

    async def run(self, command: str) -> Any:
        for shown, real in self._names.items():
            command = command.replace(shown, real)
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command), cwd=self._folder, env=self._environment, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 120)
        told = json.loads(out)
        if "sessions?limit=1" in command:
            self._names[ULID] = told["sessions"][0]["id"]
        elif '"every"' in command:
            self._names[JOB] = told["id"]
        for shown, real in self._names.items():
            out = out.replace(real.encode(), shown.encode())
        return json.loads(out)


async def test_the_examples_print_what_the_page_shows(tmp_path: Path) -> None:
    """Every command, in the order of the page, each with its own output."""
    every = examples()
    count = sum(len(shown) for _, shown in every)
    async with Daemon(tmp_path / "workspace", config={"http.token": TOKEN}) as daemon:
        # The parts that do not turn the daemon's readiness may come up behind its ``ready``.
        await until(lambda: _all_up(daemon), 120)
        shell = Shell(daemon.url, tmp_path)
        for text, expected in every:
            for command, shown in zip(_commands(text), expected, strict=True):
                told = await shell.run(command)
                assert _alike(told, shown), f"{command}\n{json.dumps(told)}\n{json.dumps(shown)}"

    assert count >= 20


async def _all_up(daemon: Daemon) -> bool:
    async with httpx.AsyncClient(timeout=30) as client:
        parts = (await client.get(f"{daemon.url}/readyz")).json()["parts"]
    return all(part["up"] for part in parts.values())


def _commands(text: str) -> Sequence[str]:
    return re.findall(r"^curl .*$", text, re.MULTILINE)


def _alike(told: Any, shown: Any) -> bool:
    """Compare two documents; ``…`` stands for anything, and times in milliseconds are as they may be."""
    if isinstance(shown, dict):
        return (
            isinstance(told, dict)
            and list(told) == list(shown)
            and all(name.endswith("AtMs") or _alike(told[name], value) for name, value in shown.items())
        )
    if isinstance(shown, list):
        return (
            isinstance(told, list)
            and len(told) == len(shown)
            and all(_alike(one, other) for one, other in zip(told, shown, strict=True))
        )
    if isinstance(shown, str) and "…" in shown:
        return re.fullmatch(re.escape(shown).replace("…", ".+"), str(told)) is not None
    return bool(told == shown)


def test_likeness_can_fail() -> None:
    """Another value, another field, another order and another length are each seen."""
    shown = {"a": [1, {"b": "x…"}], "at": "…"}

    assert _alike({"a": [1, {"b": "xy"}], "at": "now"}, shown)
    for told in (
        {"a": [2, {"b": "xy"}], "at": "now"},
        {"a": [1, {"b": "y"}], "at": "now"},
        {"a": [1], "at": "now"},
        {"at": "now", "a": [1, {"b": "xy"}]},
        {"a": [1, {"b": "xy"}], "at": "now", "c": 1},
    ):
        assert not _alike(told, shown)
