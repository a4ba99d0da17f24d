"""A call of a tool on a server's stdio: through the toolbox, through whole turns, and by the bare client."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median
from gateway.app.wiring_mcp import Confined
from session.context.scopes import Scopes
from session.mcp.process import Launch, unconfined
from session.mcp.servers import McpServers
from session.mcp.spec import ServerSpec
from session.models.model import Answer, OnDelta, Prompt, ToolCall
from session.store.store import Session, Store
from session.tools import Toolbox, ToolPlace
from session.transcript.key import SessionKey
from session.turn.turn import Request, StopSwitch, TurnContext, TurnLimits, Turns

SERVER = Path(__file__).parent.parent / "tests/session/mcp/good_server.py"
COMMAND = [sys.executable, str(SERVER), "log"]
CALLS, ROUNDS = 200, 7
NAME, ARGUMENTS = "mcp_good_add", {"a": 1, "b": 2}
KEY = SessionKey("cli:ada")
Times = dict[str, list[float]]


def run() -> list[Row]:
    """Alternate, in one process; each has a server of its own, of the same program."""
    times = run_loop(_measure)
    bare = median(times["bare"])
    what = f"{CALLS} calls one after the other, {ROUNDS} times in turn"
    return [
        Row(
            "a call through the toolbox",
            median(times["toolbox"]),
            bare,
            "ms",
            "bare mcp client, same server",
            median(times["toolbox"]) / bare,
            at_most=1.3,
            notes={"what": what, "samples": times, "profile": _profile(times, bare)},
        ),
        Row(
            "… of a server in the sandbox",
            median(times["sandbox"]),
            bare,
            "ms",
            "bare mcp client, no sandbox",
            median(times["sandbox"]) / bare,
            notes={
                "what": "told only: as a daemon runs it; the sandbox is the server's cost, not the call's"
            },
        ),
        Row(
            "… within a turn, stored before and after",
            median(times["turn"]),
            bare,
            "ms",
            "bare mcp client, nothing stored",
            median(times["turn"]) / bare,
            notes={
                "what": "told only: a round of a turn with a model that answers at once, two appends synced"
            },
        ),
    ]


def _profile(times: Times, bare: float) -> dict[str, float]:
    """Say where the milliseconds of a call go, over those of the bare client."""
    toolbox, turn = median(times["toolbox"]), median(times["turn"])
    return {"bare": bare, "arguments, limits and quotation": toolbox - bare, "stored twice": turn - toolbox}


async def _measure() -> Times:
    times: Times = {"bare": [], "toolbox": [], "sandbox": [], "turn": []}
    with folder() as path:
        (path / "bare").mkdir()
        parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], cwd=path / "bare")
        plain, confined = (
            _Ours(path / "plain", unconfined),
            _Ours(path / "box", Confined(path / "box").launch),
        )
        async with Client(parameters) as client, plain, confined:
            for number in range(ROUNDS + 1):
                found = {
                    "bare": await _timed(lambda: client.call_tool("add", ARGUMENTS)),
                    "toolbox": await _timed(plain.call),
                    "sandbox": await _timed(confined.call),
                    "turn": await plain.turn(number),
                }
                # The first round warms all of them up.
                if number:
                    for name, value in found.items():
                        times[name].append(value)
    return times


async def _timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Return what one call takes, in milliseconds."""
    began = time.perf_counter()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter() - began) * 1000 / CALLS


class _Asks:
    """A model that calls the tool so often, then answers."""

    name, plain, left = "asks", False, 0

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        if not self.left:
            return Answer("done")
        self.left -= 1
        return Answer("", tool_calls=[ToolCall(f"c{self.left}", NAME, json.dumps(ARGUMENTS))])


class _Ours:
    """A server as a daemon keeps it, with a toolbox and turns over it."""

    def __init__(self, workspace: Path, launch: Launch) -> None:
        spec = ServerSpec("good", command=COMMAND, readable=[SERVER.parent])
        scopes = Scopes(workspace, kind="chat")
        self._servers = McpServers([spec], workspace / "state", scopes, launch=launch)
        self._box = Toolbox([], self._servers)
        self._place = ToolPlace(workspace, KEY)
        self._model = _Asks()
        self._store = Store(workspace, zone=UTC)
        self._turns = Turns(
            model=self._model,
            toolbox=self._box,
            limits=TurnLimits(max_tool_rounds=CALLS + 1),
            zone=UTC,
            clock=lambda: datetime.now(UTC),
            turn_context=self._context,
        )

    async def call(self) -> None:
        result = await self._box.run(ToolCall("c", NAME, json.dumps(ARGUMENTS)), self._place, (NAME,))
        assert result.text.endswith("| 3"), result.text

    async def turn(self, number: int) -> float:
        """Return what one of the calls of a turn takes with all that belongs to it, in milliseconds."""
        calls = self._model.left = CALLS // 4
        began = time.perf_counter()
        async with self._store.open(KEY) as session:
            await self._turns.run(session, Request(f"m{number}", KEY, "go"), stop=StopSwitch())
        return (time.perf_counter() - began) * 1000 / calls

    async def _context(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self._place.folder, tools=(NAME,))

    async def __aenter__(self) -> None:
        self._keeping = asyncio.create_task(self._servers.run())
        await self._servers.refresh()
        assert self._servers.tools(), self._servers.parts()

    async def __aexit__(self, *_: object) -> None:
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        await self._store.aclose()
