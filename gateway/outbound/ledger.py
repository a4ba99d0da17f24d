"""What a platform accepted so far, piece by piece: the memory of the last hand-over.

A record is on disk before a send begins, and another one after the platform took it. What stands as begun and
not as sent has an unknown outcome: the process died in between, or the answer of the platform was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import durable
from gateway.outbound.ledger_file import LedgerFile
from gateway.outbound.ledger_log import LedgerLog
from gateway.outbound.ledger_rows import Progress, Rows

__all__ = ["DeliveryLedger", "Progress"]


class DeliveryLedger:
    """The file ``state/delivery-<channel>.db``, touched by one thread of its own; used as a context.

    Every method that changes something returns when that is on disk.

    Args:
        path: the file.
        clock: the wall clock, UTC.
        log: what other machines note, and read of this one; None: the file is all there is.

    Raises:
        NewerState: on entering; a newer version wrote the file, which was not touched.
        LedgerDown: the disk refuses; nothing of what was asked is stored.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], datetime] = durable.now,
        log: LedgerLog | None = None,
    ) -> None:
        self._file = LedgerFile(path, clock, log)
        self._moves: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        self._moves = await self._file.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._file.stop()

    # -- letters and their pieces ------------------------------------------------------------------

    async def progress(self, key: str, out_id: str) -> Progress:
        """Say how far a letter came."""
        return await self._file.ask(partial(Rows.progress, key=key, out_id=out_id))

    async def trying(self, key: str, out_id: str, piece: int) -> None:
        """Note that a send begins; from now on its outcome is unknown."""
        await self._file.ask(partial(Rows.count, key=key, out_id=out_id, piece=piece, by=1))

    async def not_sent(self, key: str, out_id: str, piece: int) -> None:
        """Note that the send which was begun last did surely not reach the platform."""
        await self._file.ask(partial(Rows.count, key=key, out_id=out_id, piece=piece, by=-1))

    async def sent(
        self,
        key: str,
        out_id: str,
        piece: int,
        *,
        platform_id: str,
        last: bool = False,
        put_at: datetime | None = None,
    ) -> None:
        """Note that the platform accepted a piece; with ``last`` also that the letter, put then, is done."""
        note = partial(Rows.sent_last, put_at=put_at) if last else Rows.sent
        await self._file.ask(partial(note, key=key, out_id=out_id, piece=piece, platform_id=platform_id))

    async def done(self, key: str, out_id: str) -> None:
        """Note that nothing of a letter is left to send; its draft is the answer now, or forgotten."""
        await self._file.ask(partial(Rows.done, key=key, out_id=out_id))

    async def set_aside(self, key: str, out_id: str) -> None:
        """Forget the unknown outcomes of a letter that was parked: whoever retries it wants it sent."""
        await self._file.ask(partial(Rows.set_aside, key=key, out_id=out_id))

    # -- drafts ------------------------------------------------------------------------------------

    async def begin_draft(self, key: str, out_id: str) -> str | None:
        """Note that a draft of this reply is about to be sent.

        Returns:
            The id of the draft that there is already; empty where a new one may be sent; None where the
            reply itself is on its way, or an earlier draft has an unknown outcome: then none may be sent.
        """
        return await self._file.ask(partial(Rows.begin_draft, key=key, out_id=out_id))

    async def draft_sent(self, key: str, out_id: str, platform_id: str) -> None:
        """Note the platform's id of the draft."""
        await self._file.ask(partial(Rows.draft_sent, key=key, out_id=out_id, platform_id=platform_id))

    async def drop_draft(self, key: str, out_id: str) -> None:
        """Note that there is no draft of this reply (any more)."""
        await self._file.ask(partial(Rows.drop_draft, key=key, out_id=out_id))

    # -- chats -------------------------------------------------------------------------------------

    async def moved(self, old: str, new: str) -> None:
        """Note that a chat goes on under another id."""
        if old != new:
            self._moves = await self._file.ask(partial(Rows.moved, old=old, new=new))

    def address(self, chat_id: str) -> str:
        """Return the id under which a chat goes on now."""
        seen = {chat_id}
        while (new := self._moves.get(chat_id, chat_id)) not in seen:
            seen.add(new)
            chat_id = new
        return chat_id
