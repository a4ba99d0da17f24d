"""Opens the state database of a workspace, with errors that say how to go on."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import structlog

from durable import (
    STATE_FILE,
    EarlierVersion,
    LockHeld,
    NewerVersion,
    StateUnavailable,
    StateWriter,
    connect,
    monotonic,
    now,
)
from gateway.errors import EarlierState, MailboxError, NewerState, StateInUse, Unreachable
from gateway.queue.mailbox import Health

# For a command that has the database for a moment.
_WAIT_S: Final = 3.0
_POLL_S: Final = 0.05
# How often a gateway that waits for another one's end looks.
_STANDS_BY_S: Final = 2.0
# How long one that works may be without its queue, while another one waits.
_WITHOUT_QUEUE_S: Final = 20.0
log = structlog.get_logger("state")


async def _entered(state: StateWriter) -> AbstractAsyncContextManager[StateWriter]:
    until = monotonic() + _WAIT_S
    while True:
        entered = state.opened()
        try:
            await entered.__aenter__()
        except LockHeld:
            if state.remote:
                return await _entered_behind_another(state)
            other = connect(state.folder)
            if other is not None:
                await other.aclose()
            # A gateway stays.
            if other is not None or monotonic() > until:
                raise
            await asyncio.sleep(_POLL_S)
        else:
            return entered


async def _entered_behind_another(state: StateWriter) -> AbstractAsyncContextManager[StateWriter]:
    """Stand by until the gateway that has a database on a server ends, or is to be taken over."""
    log.info("state.standby", hint="another gateway uses the state database; its end is awaited")
    while True:
        # The server may be away for a while.
        with contextlib.suppress(LockHeld, StateUnavailable):
            await asyncio.to_thread(state.database.stand_by)
            entered = state.opened()
            await entered.__aenter__()
            log.info("state.taken_over")
            return entered
        await asyncio.sleep(_STANDS_BY_S)


@asynccontextmanager
async def open_state(state: StateWriter) -> AsyncIterator[StateWriter]:
    """Keep the state database open; one on a server is waited for while another gateway has it.

    Raises:
        StateInUse: another process holds it.
        NewerState: a newer version wrote the file; it was not touched.
        MailboxError: the file or its folder cannot be used.
    """
    try:
        entered = await _entered(state)
    except LockHeld as error:
        raise StateInUse(
            str(error), hint=f"{error.hint}; limits.workers lets one gateway use several processes"
        ) from error
    except NewerVersion as error:
        raise NewerState(str(error), hint=error.hint) from error
    except EarlierVersion as error:
        raise EarlierState(str(error), hint=error.hint) from error
    except StateUnavailable as error:
        raise MailboxError(str(error), hint=error.hint) from error
    except (OSError, sqlite3.Error) as error:
        path = state.folder / STATE_FILE
        raise MailboxError(
            f"the state database {path} cannot be opened: {error}",
            hint=f"free space, or check the rights of {path.parent}; a damaged {path.name} may be moved away",
        ) from error
    try:
        yield state
    finally:
        await entered.__aexit__(None, None, None)


async def watch_state(state: StateWriter, health: Callable[[], Health]) -> None:
    """Wait until another gateway has taken a state database on a server over, or should.

    ``health`` says how the queue is.

    Raises:
        Unreachable: this one is to end: the other one may reach what it cannot reach.
    """
    while True:
        try:
            async with asyncio.timeout(1.0):
                await state.progress()
        except TimeoutError:
            pass
        except LockHeld as error:
            raise Unreachable(str(error), hint=error.hint) from error
        queue = health()
        queue_away = not queue.up and (now() - queue.since).total_seconds() > _WITHOUT_QUEUE_S
        if state.database.standbys and (queue_away or state.database.is_overdue()):
            away = "broker" if queue_away else "state database"
            raise Unreachable(f"the {away} cannot be reached, and another gateway waits", hint="start again")
