"""Which chats are busy, asked of a daemon that has none of them: as of the one that has them all."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import httpx

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask, command, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.until import until

pytestmark = guarantee("operation", "Every gateway process reports the busy chats of all processes.")


async def got(daemon: Daemon, path: str, **params: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=30) as client:
        found: dict[str, Any] = (await client.get(f"{daemon.url}{path}", params=params)).json()
    return found


def shown(found: dict[str, Any]) -> list[tuple[str, str, int]]:
    return sorted((lane["key"], lane["id"], lane["waiting"]) for lane in found["lanes"])


async def test_each_daemon_tells_the_lanes_of_all(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Two turns that run and one message behind: lanes, chats, traces and the verb, whoever is asked."""
    release = asyncio.Event()
    async with ModelServer() as model, AsyncExitStack() as stack:
        model.script += [Reply("done", held=release) for _ in range(3)]
        config = with_model(model, **queue)
        daemons = [
            await stack.enter_async_context(Daemon(tmp_path, config=config)) for _ in range(2 if queue else 1)
        ]
        keys = ("web:ada", "web:bob", "web:ada")
        asking = []
        for number, key in enumerate(keys):
            message = ask(daemons[0], key, f"m{number}", f"question {number}", wait_s=300)
            asking.append(asyncio.create_task(message))

            async def arrived(count: int = number + 1) -> bool:
                lanes = [lane for each in daemons for lane in (await status(each))["lanes"]]
                return sum(lane["waiting"] + (lane["id"] is not None) for lane in lanes) == count

            await until(arrived)
        await model.arrived(2)
        busy = [("web:ada", "web:m0", 1), ("web:bob", "web:m1", 0)]
        paths = [(each, path) for each in daemons for path in ("/v1/lanes", "/v1/chats")]

        async def told() -> bool:
            # Whoever is slow to answer on a busy machine is left alone for a while.
            found = [await got(*each) for each in paths]
            return [(shown(each), each["silent"]) for each in found] == [(busy, [])] * len(paths)

        async def traced() -> bool:
            found = [await got(each, f"/v1/trace/web:m{n}") for each in daemons for n in (0, 1, 2)]
            return [each["state"] for each in found] == ["running", "running", "waiting"] * len(daemons)

        async def by_verb() -> bool:
            _, out = await command(tmp_path, "status", "--json", config=config)
            return shown(json.loads(out)) == busy

        for so in (told, traced, by_verb):
            await until(so)
        alone = [shown(await got(each, "/v1/lanes", alone="true")) for each in daemons]
        if len(daemons) > 1:
            # One that stands still is named, and keeps nobody waiting for its lanes.
            await daemons[1].freeze()
            deaf = await got(daemons[0], "/v1/lanes")
            daemons[1].signal(signal.SIGCONT)
            assert (deaf["silent"], shown(deaf)) == ([daemons[1].pid], alone[0])
        release.set()
        answers = await asyncio.gather(*asking)

    assert sorted(chain(*alone)) == busy
    assert [answer and answer["reply"] for answer in answers] == ["done"] * 3
