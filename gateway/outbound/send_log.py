"""The send log: which chunks of a message a platform accepted, in the tables ``sends`` and ``chunks``.

A chunk is recorded before the call to the platform, and again when the platform has accepted it. One that was
begun and not accepted has an unknown outcome: the process died in between, or the answer was lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import durable
from gateway.errors import NewerState, SendLogDown

T = TypeVar("T")
KEPT: Final = timedelta(days=7)
# A chat may have to wait long, or a person may retry a parked message.
KEPT_UNFINISHED: Final = timedelta(days=30)
DONE_MAX: Final = 200_000
MOVES_MAX: Final = 10_000
# In changes.
PRUNE_EVERY: Final = 5_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a message a platform has accepted.

    Args:
        done: all of it.
        sent: number of a chunk → the platform's id.
        unknown: number of a chunk → how many calls were begun for it whose outcome nobody knows.
        preview: the platform's id of the message that shows the reply so far; empty where there is none.
    """

    done: bool = False
    sent: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[int, int] = field(default_factory=dict)
    preview: str = ""


@dataclass(frozen=True, slots=True)
class SentChunk:
    """What is recorded of a chunk.

    Args:
        at: the last change, UTC.
        platform_id: what the platform calls it; empty: nobody knows whether it was accepted.
        unknown: how many calls were begun for it whose outcome was not recorded.
    """

    number: int
    at: datetime
    platform_id: str = ""
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What is recorded of a message; times are UTC.

    Args:
        queued_at: when it was put into its queue; None: not known.
        done_at: when the platform accepted the last chunk; None: not yet.
    """

    key: str
    id: str
    queued_at: datetime | None = None
    done_at: datetime | None = None
    chunks: list[SentChunk] = field(default_factory=list)


class SendLog:
    """The send log of one channel, used as a context; a thread of its own writes it.

    Every method that changes something returns when that is on disk. What is asked for is done even if the
    caller is cancelled.

    Args:
        state: the folder of the database.
        channel: the name of the channel.
        clock: the wall clock, UTC.

    Raises:
        NewerState: on entering; a newer version wrote the file, which was not touched.
        SendLogDown: the disk refuses; nothing of what was asked is stored.
    """

    def __init__(self, state: Path, channel: str, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._channel = channel
        self._clock = clock
        self._down = _refused(state)
        # Changes of one message are awaited one after the other; those of different ones have no order.
        self._database = durable.ChannelsDatabase(state, down=self._down, newer=NewerState)
        self._commits: durable.GroupCommit | None = None
        self._moves: dict[str, str] = {}
        self._changes = 0

    async def __aenter__(self) -> Self:
        commits = durable.GroupCommit(self._database, name=f"send log {self._channel}", closed=_not_open)
        try:
            self._moves = await commits.open(self._open)
        except BaseException:
            await commits.close()
            raise
        self._commits = commits
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        commits, self._commits = self._commits, None
        if commits is not None:
            await commits.close()

    def _open(self) -> dict[str, str]:
        try:
            self._database.open()
            self._database.change(lambda _: self._prune())
            return self._all_moves()
        except (OSError, sqlite3.Error) as error:
            raise self._down(error) from error

    async def _ask(self, work: Callable[[], T]) -> T:
        if self._commits is None:
            raise _not_open()
        try:
            return await self._commits.ask(work)
        except SendLogDown:
            raise
        except Exception as error:
            raise self._down(error) from error

    def _run(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        return self._database.file.execute(statement, values)

    def _now_ms(self, *, ago: timedelta = timedelta(0)) -> int:
        return _ms(self._clock() - ago)

    # -- messages and their chunks -----------------------------------------------------------------

    async def progress(self, key: str, out_id: str) -> Progress:
        """Return how much of a message was accepted."""
        return await self._ask(lambda: self._progress(key, out_id))

    def _progress(self, key: str, out_id: str) -> Progress:
        query = "SELECT done_ms, preview FROM sends WHERE key = ? AND id = ?"
        done_ms, preview = self._run(query, (key, out_id)).fetchone() or (None, None)
        if done_ms is not None:
            return Progress(done=True)
        sent: dict[int, str] = {}
        unknown: dict[int, int] = {}
        query = "SELECT number, unknown, platform_id FROM chunks WHERE key = ? AND id = ?"
        for number, count, platform_id in self._run(query, (key, out_id)):
            if platform_id is not None:
                sent[number] = platform_id
            elif count:
                unknown[number] = count
        return Progress(sent=sent, unknown=unknown, preview=preview or "")

    async def trying(self, key: str, out_id: str, number: int) -> None:
        """Record that a call begins; from now on its outcome is unknown."""
        await self._ask(lambda: self._count(key, out_id, number, 1))

    async def not_sent(self, key: str, out_id: str, number: int) -> None:
        """Record that the last call that was begun certainly did not reach the platform."""
        await self._ask(lambda: self._count(key, out_id, number, -1))

    def _count(self, key: str, out_id: str, number: int, by: int) -> None:
        self._run(
            """INSERT INTO chunks VALUES (?, ?, ?, max(0, ?), NULL, ?)
                ON CONFLICT DO UPDATE SET unknown = max(0, unknown + ?), at_ms = excluded.at_ms""",
            (key, out_id, number, by, self._now_ms(), by),
        )
        self._changed()

    async def sent(
        self,
        key: str,
        out_id: str,
        number: int,
        *,
        platform_id: str,
        last: bool = False,
        queued_at: datetime | None = None,
    ) -> None:
        """Record that the platform accepted a chunk; with ``last`` also that the message is done."""

        def record() -> None:
            self._run(
                """INSERT INTO chunks VALUES (?, ?, ?, 0, ?, ?)
                    ON CONFLICT DO UPDATE SET platform_id = excluded.platform_id, at_ms = excluded.at_ms""",
                (key, out_id, number, platform_id, self._now_ms()),
            )
            self._changed()
            if last:
                self._done(key, out_id, queued_at)

        await self._ask(record)

    async def done(self, key: str, out_id: str) -> None:
        """Record that nothing of a message is left to send; its preview is the answer now, or forgotten."""
        await self._ask(lambda: self._done(key, out_id))

    def _done(self, key: str, out_id: str, queued_at: datetime | None = None) -> None:
        queued_ms = None if queued_at is None else _ms(queued_at)
        self._run(
            "INSERT OR REPLACE INTO sends VALUES (?, ?, ?, ?, NULL, NULL)",
            (key, out_id, queued_ms, self._now_ms()),
        )
        self._changed()

    async def set_aside(self, key: str, out_id: str) -> None:
        """Forget the unknown outcomes of a message that was parked: whoever retries it wants it sent."""
        statement = "UPDATE chunks SET unknown = 0 WHERE key = ? AND id = ?"
        await self._ask(lambda: self._run(statement, (key, out_id)).rowcount)

    # -- live previews -----------------------------------------------------------------------------

    async def begin_preview(self, key: str, out_id: str) -> str | None:
        """Record that a preview of this reply is about to be sent.

        Returns:
            The id of the preview that there is already; empty where a new one may be sent; None where the
            reply itself is on its way, or an earlier preview has an unknown outcome: then none may be sent.
        """
        return await self._ask(lambda: self._begin_preview(key, out_id))

    def _begin_preview(self, key: str, out_id: str) -> str | None:
        name = (key, out_id)
        row = self._run("SELECT preview FROM sends WHERE key = ? AND id = ?", name).fetchone()
        if row is not None:
            return row[0] or None
        if self._run("SELECT 1 FROM chunks WHERE key = ? AND id = ?", name).fetchone():
            return None
        self._run("INSERT INTO sends VALUES (?, ?, NULL, NULL, '', ?)", (*name, self._now_ms()))
        self._changed()
        return ""

    async def preview_sent(self, key: str, out_id: str, platform_id: str) -> None:
        """Record the platform's id of the preview."""
        statement = """UPDATE sends SET preview = ?, preview_ms = ?
            WHERE key = ? AND id = ? AND preview IS NOT NULL"""
        await self._ask(lambda: self._run(statement, (platform_id, self._now_ms(), key, out_id)).rowcount)

    async def drop_preview(self, key: str, out_id: str) -> None:
        """Record that there is no preview of this reply (any more)."""
        statement = "DELETE FROM sends WHERE key = ? AND id = ? AND done_ms IS NULL"
        await self._ask(lambda: self._run(statement, (key, out_id)).rowcount)

    # -- chats that moved --------------------------------------------------------------------------

    async def moved(self, old: str, new: str) -> None:
        """Record that a chat continues under another id."""
        if old != new:
            self._moves = await self._ask(lambda: self._move(old, new))

    def _move(self, old: str, new: str) -> dict[str, str]:
        # The chat has the new id now, whatever was recorded before.
        self._run("DELETE FROM moved_chats WHERE channel = ? AND old = ?", (self._channel, new))
        row = (self._channel, old, new, self._now_ms())
        self._run("INSERT OR REPLACE INTO moved_chats VALUES (?, ?, ?, ?)", row)
        self._run(
            """DELETE FROM moved_chats WHERE (channel, old) IN (SELECT channel, old FROM moved_chats
                WHERE channel = ? ORDER BY at_ms DESC LIMIT -1 OFFSET ?)""",
            (self._channel, MOVES_MAX),
        )
        return self._all_moves()

    def _all_moves(self) -> dict[str, str]:
        return dict(
            self._run("SELECT old, new FROM moved_chats WHERE channel = ?", (self._channel,)).fetchall()
        )

    def address(self, chat_id: str) -> str:
        """Return the id under which a chat continues now."""
        seen = {chat_id}
        while (new := self._moves.get(chat_id, chat_id)) not in seen:
            seen.add(new)
            chat_id = new
        return chat_id

    # -- the pace of a platform --------------------------------------------------------------------

    async def recent(self, within_s: float) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Return what a limiter has to know after a restart.

        Returns:
            Each chunk that the platform accepted within these seconds: its chat, and how many seconds ago.
            Each pause that is not over: its chat, and how many seconds of it are left.
        """

        def look() -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
            now_ms = self._now_ms()
            query = "SELECT key, at_ms FROM chunks WHERE at_ms > ? AND platform_id IS NOT NULL"
            rows = self._run(query, (now_ms - int(within_s * 1000),))
            keys = ((key.partition(":"), max(0, now_ms - at_ms) / 1000) for key, at_ms in rows)
            sent = [(chat, ago_s) for (channel, _, chat), ago_s in keys if channel == self._channel]
            rows = self._run("SELECT chat, at_ms, for_s FROM pauses WHERE channel = ?", (self._channel,))
            # A clock that was set back makes no pause longer than it was.
            pauses = [(chat, for_s - max(0, now_ms - at_ms) / 1000) for chat, at_ms, for_s in rows]
            return sent, [(chat, left_s) for chat, left_s in pauses if left_s > 0]

        return await self._ask(look)

    async def pause(self, chat: str, for_s: float) -> None:
        """Record that the platform wants no call for a chat ('': for any) for some seconds."""

        def record() -> None:
            row = (self._channel, chat, self._now_ms(), for_s)
            self._run("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?, ?)", row)

        await self._ask(record)

    # -- what is old -------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._changes += 1
        if self._changes % PRUNE_EVERY == 0:
            self._prune()

    def _prune(self) -> None:
        """Remove what is older than anything that may still be delivered again."""
        old = "SELECT key, id FROM sends WHERE done_ms < ?"
        many = """SELECT key, id FROM sends WHERE done_ms IS NOT NULL
            ORDER BY done_ms DESC LIMIT -1 OFFSET ?"""
        for which, bound in ((old, self._now_ms(ago=KEPT)), (many, DONE_MAX)):
            for table in ("chunks", "sends"):
                self._run(f"DELETE FROM {table} WHERE (key, id) IN ({which})", (bound,))  # noqa: S608
        oldest = (self._now_ms(ago=KEPT_UNFINISHED),)
        self._run("DELETE FROM chunks WHERE at_ms < ?", oldest)
        self._run("DELETE FROM sends WHERE done_ms IS NULL AND preview_ms < ?", oldest)
        self._run("DELETE FROM pauses WHERE at_ms + for_s * 1000 < ?", (self._now_ms(),))


def forget(state: Path, keys: Collection[str], *, before: datetime | None) -> int:
    """Forget what was sent to these keys, ``before`` a time or ever; no byte of it stays. For threads.

    With a time, messages that are under way stay known: they may be delivered again, and would be sent twice.

    Returns:
        How many messages, chunks of unfinished ones and previews were forgotten.

    Raises:
        SendLogDown: the disk refused, or another process is in the way; call it again.
    """
    if not (state / durable.CHANNELS_FILE).exists():
        return 0
    end_ms = 2**62 if before is None else _ms(before)
    # The chunks of a message that is done are not counted.
    of_done = """DELETE FROM chunks WHERE key = ?1 AND EXISTS (SELECT 1 FROM sends
        WHERE sends.key = chunks.key AND sends.id = chunks.id AND done_ms < ?2)"""
    statements = ["DELETE FROM sends WHERE key = ?1 AND done_ms < ?2"]
    if before is None:
        statements += [f"DELETE FROM {table} WHERE key = ?1 AND ?2" for table in ("chunks", "sends")]  # noqa: S608

    def remove(file: sqlite3.Connection) -> int:
        values = [(key, end_ms) for key in keys]
        file.executemany(of_done, values)
        return sum(file.executemany(each, values).rowcount for each in statements)

    with durable.open_channels(state, down=_refused(state), newer=NewerState) as database:
        count = database.change(remove)
        if count:
            database.compact()
    return count


def sent_for(state: Path, message_id: str) -> list[SentMessage]:
    """List what was recorded of everything that was sent for a message. For threads.

    Raises:
        NewerState: a newer version wrote the file.
        SendLogDown: it cannot be read.
    """
    # What is sent for a message is named ``<its id>#…``, a proactive one by its own id.
    bounds = (message_id, f"{message_id}#", f"{message_id}$")
    where = "WHERE (id = ? OR (id >= ? AND id < ?))"
    found: dict[tuple[str, str], SentMessage] = {}
    with durable.reading_channels(state, down=_refused(state), newer=NewerState) as file:
        query = f"SELECT key, id, number, at_ms, platform_id, unknown FROM chunks {where}"  # noqa: S608
        for key, id_, number, at_ms, platform_id, unknown in file.execute(query, bounds):
            message = found.setdefault((key, id_), SentMessage(key, id_))
            message.chunks.append(SentChunk(number, _time(at_ms), platform_id or "", unknown))
        query = f"SELECT key, id, queued_ms, done_ms FROM sends {where} AND done_ms IS NOT NULL"  # noqa: S608
        for key, id_, queued_ms, done_ms in file.execute(query, bounds):
            chunks = found[key, id_].chunks if (key, id_) in found else []
            queued_at = None if queued_ms is None else _time(queued_ms)
            found[key, id_] = SentMessage(key, id_, queued_at, _time(done_ms), chunks)
    return list(found.values())


def _refused(state: Path) -> Callable[[Exception], SendLogDown]:
    path = state / durable.CHANNELS_FILE
    return lambda error: SendLogDown(
        f"{path} cannot be written: {error}",
        hint=f"free disk space, or check the permissions of {state}; a damaged file can be moved away",
    )


def _not_open() -> SendLogDown:
    return SendLogDown("the send log is not open")


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
