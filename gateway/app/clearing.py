"""A conversation is cleared: the one place that knows what then goes with its transcript."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from gateway.app.sessions import SessionServices
from gateway.app.subagents import end_all
from gateway.turns.open_letters import OpenLetters
from session.approvals.files import ApprovalFiles
from session.disk.threads import start_thread
from session.store.media import AwaitedFiles
from session.store.store import Store
from session.transcript.key import SessionKey


async def clear(
    key: str,
    store: Store,
    *,
    state: Path,
    services: SessionServices | None = None,
    letters: OpenLetters | None = None,
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
        letters: those of the lanes of this gateway; None: no turn runs here.
        ids: see ``Store.clear``, as the next three; the turn that runs has its own added.
        of: where the session is another one by now, nothing is deleted and nothing ends.
        everything: what else of the key goes.
        awaited: names the files that stay.

    Returns:
        Whether there was a transcript.

    Raises:
        StoreError: call it again.
    """
    begun = [each.id for each in await letters.of([key]) if each.begun] if letters is not None else []
    ids = [*ids, *begun]
    cleared = await store.clear(SessionKey(key), ids=ids, of=of, everything=everything, awaited=awaited)
    if not cleared and of is not None:
        return False
    if letters is not None:
        # The turn that runs by now may be of a letter that came behind.
        for message_id in begun:
            await letters.stop(key, only=message_id)
        await letters.cleared(key)
    await end_all(services.spawning if services is not None else None, state, key)
    if services is not None:
        await services.end_compactions(key)
    await start_thread(lambda: ApprovalFiles(state).forget(key), name="approvals")
    return cleared
