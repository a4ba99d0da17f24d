"""Which functions of the product one Telegram message runs through: ``python -m bench.hops``.

A gateway in this process (echo, embedded queue, everyone let in) answers three messages of one chat. The
third is traced in all threads, from its update until its reply is accepted. Functions that an idle second
runs too, such as the poll, are left out. Each line of the list begins with the depth at the function's first
call; behind the list comes the deepest chain of calls. Syncs are those that Python asks for; SQLite's own are
not seen.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.application import kept_up, run, settings
from bench.place import folder
from gateway.app.application import Application
from gateway.app.metrics import Metrics
from tests.support.telegram_server import TelegramServer

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tuple(f"{ROOT / name}{os.sep}" for name in ("gateway", "channels", "session", "durable"))
SYNCS = ("fsync", "fdatasync", "sync_file_range")
PERSON = 12345678


@dataclass
class Trace:
    """The calls of the product's functions, in order, while it is on."""

    on: bool = False
    calls: list[tuple[CodeType, int]] = field(default_factory=list)
    deepest: list[CodeType] = field(default_factory=list)
    syncs: int = 0

    def start(self) -> None:
        """Trace this thread and those that begin from now on."""
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)

    def taken(self) -> Trace:
        """Return what was traced so far, and begin with nothing."""
        found = Trace(False, self.calls, self.deepest, self.syncs)
        self.calls, self.deepest, self.syncs = [], [], 0
        return found

    def _hear(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self.on:
            return
        if event == "call":
            if frame.f_code.co_filename.startswith(PACKAGES) and not frame.f_code.co_name.startswith("<"):
                chain = _chain(frame)
                self.calls.append((frame.f_code, len(chain)))
                self.deepest = max(self.deepest, chain, key=len)
        elif event == "c_call" and getattr(arg, "__name__", "") in SYNCS:
            self.syncs += 1


def _chain(frame: FrameType | None) -> list[CodeType]:
    """Return the product's functions that run, the innermost first."""
    chain = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGES):
            chain.append(frame.f_code)
        frame = frame.f_back
    return chain


async def traced(workspace: Path) -> tuple[Trace, Trace]:
    """Return what the third message runs, and what an idle second does."""
    trace = Trace()
    trace.start()
    with TelegramServer() as telegram:
        platform = {
            "channels__telegram__enabled": True,
            "channels__telegram__token": telegram.token,
            "channels__telegram__base_url": telegram.base_url,
            "channels__telegram__base_file_url": telegram.base_file_url,
            "channels__telegram__direct": "open",
        }
        given = settings(workspace, broker__url="embedded", model__name="echo", **platform)
        metrics = Metrics()
        async with kept_up(Application(given, platforms=True, observer=metrics, metrics=metrics)):
            for number in (1, 2):
                telegram.write(PERSON, f"message {number}")
                await telegram.sent_count(number)
            await asyncio.sleep(2)
            trace.on = True
            await asyncio.sleep(1)
            idle = trace.taken()
            telegram.write(PERSON, "message 3")
            await telegram.sent_count(3)
            trace.on = False
            sys.setprofile(None)
            return trace.taken(), idle


def report(message: Trace, idle: Trace) -> tuple[dict[str, int], list[str]]:
    """Return the figures, and the functions in the order of their first calls, then the deepest chain."""
    always = {code for code, _ in idle.calls}
    calls = [(code, depth) for code, depth in message.calls if code not in always]
    first: dict[CodeType, int] = {}
    for code, depth in calls:
        first.setdefault(code, depth)
    modules = [_module(code) for code, _ in calls]
    figures = {
        "functions": len(first),
        "modules": len(set(modules)),
        "module switches": sum(one != other for one, other in pairwise(modules)),
        "depth": max((depth for _, depth in calls), default=0),
        "calls": len(calls),
        "syncs": message.syncs - idle.syncs,
    }
    functions = [f"{depth:>3}  {_module(code)}  {code.co_qualname}" for code, depth in first.items()]
    chain = [f"     {_module(code)}  {code.co_qualname}" for code in reversed(message.deepest)]
    return figures, [*functions, "the deepest chain:", *chain]


def _module(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(ROOT))


def main() -> None:
    """Print the figures and the list."""
    with folder() as place:
        figures, functions = report(*run(lambda: traced(place)))
    for line in functions if "--figures" not in sys.argv else []:
        print(line)
    for name, figure in figures.items():
        print(f"{name:<16}{figure:>7,}")


if __name__ == "__main__":
    main()
