"""Works for a client as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection; what was done for it is cancelled."""


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does for a client whose request was read whole.

    Raises:
        ClientLeft: it left first.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)
    raise ClientLeft


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
