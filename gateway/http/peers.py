"""Asks the other daemons of the workspace what only they know: the lines of the chats that are theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import structlog
from fastapi import Query

from gateway.app.daemons import DaemonRegistry
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.http.client import Client

log = structlog.get_logger("http")

T = TypeVar("T")
WITHIN_S: Final = 2.0
# Whoever did not answer is left alone for so long: a page asks every few seconds.
RESTS_S: Final = 10.0
Alone = Annotated[bool, Query(description="only this process, without the others of the workspace")]


@dataclass(frozen=True, slots=True)
class Heard(Generic[T]):
    """What the others said, and the process ids of those that said nothing and of those that refused."""

    answers: Sequence[T] = ()
    silent: Sequence[int] = ()
    refused: Sequence[int] = ()


class Peers:
    """The other daemons of one workspace on this machine; with the embedded queue there is none."""

    def __init__(self, settings: Settings) -> None:
        self._embedded = settings.broker.embedded
        self._token = settings.http.token.get_secret_value()
        self._registry = DaemonRegistry(settings.workspace)
        self._clients: dict[str, Client] = {}
        self._rests: dict[str, float] = {}

    async def ask(
        self, question: Callable[[Client], Awaitable[T]], *, within_s: float = WITHIN_S
    ) -> Heard[T]:
        """Ask all of them at once; who does not answer within ``within_s`` seconds is named as silent."""
        if self._embedded:
            return Heard()
        others = {
            one.url: one.pid
            for one in await asyncio.to_thread(self._registry.running)
            if one.url and one.pid != os.getpid()
        }
        await self._forget(self._clients.keys() - others.keys())
        now = asyncio.get_running_loop().time()
        asked = [url for url in others if self._rests.get(url, 0) <= now]
        heard = await asyncio.gather(*(self._answer(url, question, within_s) for url in asked))
        found = dict(zip(asked, heard, strict=True))
        return Heard(
            [each for each in heard if each is not None and not isinstance(each, GatewayError)],
            sorted(pid for url, pid in others.items() if found.get(url) is None),
            sorted(others[url] for url, each in found.items() if isinstance(each, GatewayError)),
        )

    async def _answer(
        self, url: str, question: Callable[[Client], Awaitable[T]], within_s: float
    ) -> T | GatewayError | None:
        client = self._clients.get(url)
        if client is None:
            # It takes 14 ms of the loop, which no question to a peer that is known may cost.
            client = self._clients[url] = Client(url, self._token)
        try:
            async with asyncio.timeout(within_s):
                return await question(client)
        except TimeoutError:
            log.warning("peer.silent", url=url, after_s=within_s)
            self._rests[url] = asyncio.get_running_loop().time() + RESTS_S
            return None
        except GatewayError as error:
            return error

    async def _forget(self, urls: Iterable[str]) -> None:
        for url in list(urls):
            self._rests.pop(url, None)
            await self._clients.pop(url).aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._forget(self._clients)


def united(lanes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one lane a chat: while a chat changes hands two daemons may have one, of which one runs."""
    found: dict[str, dict[str, Any]] = {}
    for lane in lanes:
        known = found.get(lane["key"])
        if known is None or _weight(lane) > _weight(known):
            found[lane["key"]] = lane
    return list(found.values())


def _weight(lane: dict[str, Any]) -> tuple[bool, bool, bool, int]:
    return lane["running_s"] is not None, lane["id"] is not None, bool(lane["asking"]), lane["waiting"]
