"""A conversation is cleared: the one place that knows what then goes with its transcript."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from gateway.app.sessions import SessionServices
from gateway.app.subagents import end_all
from gateway.turns.lanes import Lanes
from session.approvals.files import ApprovalFiles
from session.disk.threads import start_thread
from session.store.enclosed import AwaitedFiles
from session.store.store import Store
from session.transcript.key import SessionKey


async def clear(
    key: str,
    store: Store,
    *,
    state: Path,
    services: SessionServices | None = None,
    lanes: Lanes | None = None,
    ids: Iterable[str] = (),
    of: str | None = None,
    everything: bool = False,
    awaited: Callable[[], Awaitable[AwaitedFiles]] | None = None,
) -> bool:
    """Delete the transcript of a key, then end what the conversation has under way.

    That is its turn, whose id is known as cleared, so that it is not begun again; its subagents, of whose
    results nobody hears any more; a compaction behind a turn; and the calls that wait for a person's word.

    Args:
        key: the conversation.
        store: where it is kept.
        state: the folder ``state/`` of the workspace.
        services: the session side of this process; None: nothing of the conversation runs in it.
        lanes: those of the worker of this process; None: no turn runs here.
        ids: see ``Store.clear``, as the next three; the turn that runs has its own added.
        of: where the session is another one by now, nothing is deleted and nothing ends.
        everything: what else of the key goes.
        awaited: names the files that stay.

    Returns:
        Whether there was a transcript.

    Raises:
        StoreError: call it again.
    """
    begun = lanes.begun(key) if lanes is not None else None
    ids = [*ids, *([begun.inbound.id] if begun is not None else [])]
    cleared = await store.clear(SessionKey(key), ids=ids, of=of, everything=everything, awaited=awaited)
    if not cleared and of is not None:
        return False
    # The turn that runs by now may be of a letter that came behind.
    if lanes is not None and lanes.begun(key) is begun:
        lanes.stop(key)
    await end_all(services.spawning if services is not None else None, state, key)
    if services is not None:
        await services.compactions.settled(key, cancel=True)
    await start_thread(lambda: ApprovalFiles(state).forget(key), name="approvals")
    return cleared
