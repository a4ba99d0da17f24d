"""A group that has a new id: its conversation goes on under the new key."""

from __future__ import annotations

from functools import partial

import structlog

from channels.cron.jobs_file import CronFile
from channels.errors import ChannelError
from channels.message import Inbound
from gateway.turns.lanes import RetryAfter
from session.background import moving
from session.background.adoption import is_busy
from session.background.job_files import move_jobs
from session.disk.threads import start_thread
from session.store import rollover
from session.store.store import Session, Store
from session.transcript.agent import agent_in
from session.transcript.key import SessionKey, split
from session.turn.turn import Reply

log = structlog.get_logger("moves")

MOVED_TO = "moved_to"
# Between two looks whether a turn under the new key has ended.
BUSY_S = 1.0


def target(inbound: Inbound) -> SessionKey | None:
    """Return the new key where a letter, which came under the old one, says that its chat has moved."""
    to = inbound.meta.get(MOVED_TO)
    if inbound.kind != "action" or not isinstance(to, str) or to == inbound.key:
        return None
    channel, chat_id = split(to)
    return SessionKey(to) if channel == inbound.channel and chat_id else None


async def settle(store: Store, session: Session, inbound: Inbound, to: SessionKey) -> Reply | RetryAfter:
    """Move everything of the conversation; done again after a crash it goes on where it was.

    It waits for the end of a turn that another agent has begun under the new key.

    Raises:
        Fenced, StoreError: try again.
    """
    # The journal notes it last: what a crash cuts short is done again from the beginning.
    if session.journal.known(inbound.id) is None:
        if not await _keeps_apart(store, session, inbound, to):
            return RetryAfter(BUSY_S)
        stems = await moving.move(store, session.key, to)
        await start_thread(
            lambda: move_jobs(store.layout.workspace / "state", session.key, to), name="move jobs"
        )
        await start_thread(lambda: _move_schedules(store, session.key, to), name="move schedules")
        await session.journal.conclude(inbound.id, "silent", reason="moved", to=to)
        log.info("conversation.moved", to=to, files=stems)
    return Reply(silent=True)


async def _keeps_apart(store: Store, old: Session, inbound: Inbound, to: SessionKey) -> bool:
    """Let the chat keep its agent, and end what another one began under the new key: lines never mix.

    Returns:
        False where that one is still answering.
    """
    async with store.open(to) as new:
        chosen, agent = old.journal.agent, agent_in(old.metadata)
        if len(old) and len(new) and agent != agent_in(new.metadata):
            if is_busy(new):
                return False
            await new.change(partial(rollover.turn_to, agent=agent, by=inbound.id))
        if chosen is not None:
            await new.journal.choose(inbound.id, chosen)
    return True


def _move_schedules(store: Store, old: SessionKey, new: SessionKey) -> None:
    """Have the jobs of the chat ask and answer under its new key."""
    try:
        CronFile(store.layout.workspace).move_chat(old, new)
    except ChannelError as error:
        # The conversation moves all the same; ``doctor`` names the fault of the file.
        log.warning("schedules.unmoved", to=new, error=str(error), hint=error.hint)
