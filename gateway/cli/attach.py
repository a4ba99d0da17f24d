"""Finds the running daemon of a workspace, or opens its queue in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import durable
from gateway.cli import output
from gateway.errors import StateInUse, Unreachable

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.http.client import Client
    from gateway.queue.mailbox import Mailbox

T = TypeVar("T")
OPEN_WITHIN_S = 10.0
_ENDS_WITHIN_S, _LOOK_S = 5.0, 0.1


@asynccontextmanager
async def daemon(settings: Settings) -> AsyncIterator[Client | None]:
    """Connect to the first daemon of this workspace that answers; None where none does."""
    from gateway.app.daemons import DaemonRegistry

    for one in DaemonRegistry(settings.workspace).running():
        if one.url:
            # A verb starts sooner without an HTTP client where no daemon runs.
            from gateway.http.client import Client

            async with Client(one.url, settings.http.token.get_secret_value()) as client:
                if await client.alive():
                    yield client
                    return
    yield None


@asynccontextmanager
async def daemon_or(
    settings: Settings, otherwise: Callable[[Settings], AbstractAsyncContextManager[T]]
) -> AsyncIterator[Client | T]:
    """Connect to the first daemon that answers; where none does, open what ``otherwise`` builds."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(daemon(settings))
        if client is None:
            yield await stack.enter_async_context(otherwise(settings))
        else:
            yield client


@asynccontextmanager
async def queue(settings: Settings) -> AsyncIterator[Mailbox]:
    """Open the workspace's queue in this process, and nothing else.

    Raises:
        StateInUse: a daemon holds it and does not answer, or is ending.
        Unreachable: the broker is away.
    """
    await until_ended(settings)
    # A verb that a daemon answers starts twice as fast without an application in this process.
    from gateway.app.wiring_broker import open_mailbox

    mailbox = open_mailbox(settings, reports=False)
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(mailbox.serve(), name="mailbox")
            try:
                try:
                    async with asyncio.timeout(OPEN_WITHIN_S):
                        await mailbox.ready()
                except TimeoutError:
                    health = mailbox.health()
                    text, hint = health.error or "no answer", health.hint or "chat-gateway doctor"
                    raise Unreachable(f"the queue: {text}", hint=hint) from None
                yield mailbox
            finally:
                serving.cancel()
    except BaseExceptionGroup as errors:
        raise output.leaf(errors) from None


def has_queue(settings: Settings) -> bool:
    """Say whether there is a queue; an embedded one begins with the first start."""
    return not settings.broker.embedded or (settings.state / durable.STATE_FILE).exists()


async def until_ended(settings: Settings) -> None:
    """Wait a little for a daemon that is ending: it holds the embedded queue while turns still run.

    Raises:
        StateInUse: they run on.
    """
    from gateway.app.daemons import DaemonRegistry

    registry, last = DaemonRegistry(settings.workspace), durable.monotonic() + _ENDS_WITHIN_S
    while settings.broker.embedded and (ending := registry.ending()):
        if durable.monotonic() > last:
            most = f"its running turns have up to {settings.limits.drain_s:g} s"
            hint = "run this again once chat-gateway status no longer shows that process"
            raise StateInUse(
                f"process {ending[0].pid} is shutting down and uses the queue; {most}", hint=hint
            )
        await asyncio.sleep(_LOOK_S)


async def parked_files(settings: Settings) -> frozenset[str]:
    """Name the files of ``media/`` that parked letters need: the daemon says so, else the queue itself.

    Raises:
        StateInUse, Unreachable: as ``queue``.
    """
    async with daemon(settings) as client:
        if client is not None:
            rows = await client.parked(files=True)
            return frozenset(name for row in rows for name in row["files"])
    # A verb that a daemon answers starts twice as fast without an application in this process.
    from gateway.app import wiring_broker

    async with queue(settings) as mailbox:
        return await wiring_broker.parked_files(mailbox)
