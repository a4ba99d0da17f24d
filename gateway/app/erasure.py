"""Removes all that is kept of a chat or person from every place, in a daemon that works on it or alone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

import durable
from channels.cron.jobs import read_job
from channels.cron.jobs_file import CronFile
from channels.cron.nanobot_jobs import Left
from channels.errors import ChannelError
from channels.pairing import Pairing
from channels.storage import read_rows
from gateway.app.wiring_broker import awaited_at_once, files_named
from gateway.app.wiring_session import SessionServices
from gateway.config.settings import Settings
from gateway.dispatch.open_letters import OpenLetter, OpenLetters
from gateway.dispatch.subagents import Spawning
from gateway.errors import GatewayError
from gateway.outbound import send_log
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox
from session.approvals.files import ApprovalFiles
from session.disk.local_files import homes_of
from session.disk.threads import start_thread
from session.errors import SessionError
from session.kept import erasing
from session.kept.erasing import Erased, Owed
from session.kept.export import Extra
from session.kept.rows import forget_usage
from session.kept.subject import Subject, Subjects, check_text
from session.store.media import AwaitedFiles, Named, let_go
from session.store.store import Store
from session.subagents.records import SubagentFiles
from session.transcript.key import SessionKey, split
from session.transcript.line import dump


async def end_all(spawning: Spawning | None, state: Path, key: str) -> None:
    """End the subagents of a conversation for good, and drop their results.

    Args:
        spawning: tells other daemons; None: none runs.
        state: the folder ``state/`` of the workspace.
        key: the conversation.

    Raises:
        StoreError: call it again.
    """
    if spawning is not None:
        await spawning.end(key, results=True)
    else:
        await asyncio.to_thread(partial(SubagentFiles(state).end, key, results=True))


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


CRON = "cron"
_NUMBER: Final = re.compile(rb'"(?:to|originChatId)"\s*:\s*(-?[0-9]+)')
TORN: Final = "{} cannot be read to its end and may contain more jobs; correct it, then run this again"


def answering(workspace: Path) -> dict[str, str]:
    """Return which chat each job answers: the key of its conversation, and the key of that chat.

    Of several rows of one id the conversation is that of the one which can run.

    Raises:
        ChannelError: the file of jobs cannot be opened.
    """
    contents = CronFile(workspace).read()
    found: dict[str, str | None] = {}
    # What cannot run holds words of the chat all the same.
    for bad in contents.bad:
        if bad.id and (chat := _chat_of(bad.row)):
            found.setdefault(f"{CRON}:{bad.id}", chat)
    found |= {f"{CRON}:{id_}": job.answer_to for id_, job in contents.jobs.items()}
    return {key: to for key, to in found.items() if to}


def jobs_of(workspace: Path, subject: Subject) -> list[dict[str, Any]]:
    """Return the rows of the subject's jobs as they stand in their file."""
    return [row for row in CronFile(workspace).every_row() if _is_of(row, subject)]


def remove_jobs(workspace: Path, subject: Subject) -> int:
    """Remove the subject's jobs, and the copies of damaged files in which their words stand.

    Raises:
        ChannelError: the disk refused; call it again.
    """
    count = CronFile(workspace).remove_all(lambda row: _is_of(row, subject))
    copies = [path for path in (workspace / CRON).glob("*.corrupt-*") if _names_any(path, subject)]
    for path in copies:
        path.unlink(missing_ok=True)
    return count + len(copies)


def unread_jobs(workspace: Path, subject: Subject) -> list[str]:
    """Say which files of jobs nobody can read, so that the subject's may stand there after ``remove_jobs``.

    Raises:
        ChannelError: the file of jobs cannot be opened.
    """
    file = CronFile(workspace)
    torn = file.read().fault is not None and _names_any(file.path, subject)
    found = [TORN.format("cron/jobs.json")] if torn else []
    try:
        Left(workspace).read()
    except ChannelError:
        found.append(TORN.format("cron/action.jsonl"))
    return found


def _is_of(row: object, subject: Subject) -> bool:
    """Say whether a row is the subject's: by the chat that it names, for several may have one id."""
    if not isinstance(row, Mapping):
        return False
    chat = _chat_of(row)
    # One that names no chat answers into the conversation of its id.
    return row.get("id") in subject.jobs if chat is None else chat in subject.keys


def _names_any(path: Path, subject: Subject) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    chats = {split(key)[1] for key in subject.keys}
    if any(f'"{text}"'.encode() in data for text in (*subject.jobs, *chats)):
        return True
    # A chat may stand there as a number, which others are as well.
    return any(found[1].decode() in chats for found in _NUMBER.finditer(data))


def _chat_of(row: object) -> str | None:
    """Return the key of the chat that a row names; of one that cannot run, as far as it can be told."""
    try:
        return read_job(row, UTC).answer_to
    except ChannelError:
        return _chat_named_in(row)


def _chat_named_in(row: object) -> str | None:
    payload = row.get("payload") if isinstance(row, Mapping) else None
    if not isinstance(payload, Mapping):
        return None
    for channel, chat in (("channel", "to"), ("originChannel", "originChatId")):
        if payload.get(channel) not in (None, "", CRON) and payload.get(chat):
            return f"{payload[channel]}:{payload[chat]}"
    return None


# -- who was let in --------------------------------------------------------------------------------


def _asked_from(state: Path, subject: Subject) -> set[tuple[str, str]]:
    """Return by channel and id who the subject is to the table of access."""
    chats = {split(key) for key in subject.keys}
    with contextlib.suppress(ChannelError), read_rows(state) as file:
        direct = file.execute("SELECT person, chat FROM cursors WHERE person IS NOT NULL").fetchall()
        return chats | {("discord", person) for person, chat in direct if ("discord", chat) in chats}
    return chats


def access_of(state: Path, subject: Subject) -> list[dict[str, Any]]:
    """Return who of the subject has access or asked for it."""
    return Pairing(state).records(_asked_from(state, subject))


def forget_access(state: Path, subject: Subject) -> int:
    """Forget the names of those who asked for access; a person has to ask again, a chat has not.

    Raises:
        ChannelError: the disk refused; call it again.
    """
    return Pairing(state).forget(_asked_from(state, subject), access=subject.is_person)


# -- what was sent, and what was typed ---------------------------------------------------------------


def forget_typed(state: Path, subject: Subject) -> int:
    """Forget what was typed at this machine's terminal: no line of it tells for whom it was.

    Raises:
        GatewayError: the disk refused; call it again.
    """
    path = state / "chat_history"
    if not path.exists() or not subject.typed:
        return 0
    try:
        count = path.read_bytes().count(b"\n#")
        durable.replace(path, b"")
    except OSError as error:
        raise GatewayError(f"{path.name} could not be emptied: {error.strerror}") from error
    return count


def logs(state: Path) -> list[str]:
    """Name the files of logs that lie here."""
    return [path.name for path in sorted(state.glob("chat.log*"))]


def extras(
    workspace: Path,
    subject: Subject,
    letters: Collection[Mapping[str, Any]],
    journals: Mapping[str, Collection[Mapping[str, Any]]],
) -> Iterator[Extra]:
    """Yield the parts of an export that are rows of files of all.

    ``letters`` are the parked ones; ``journals`` has the entries of each key.
    """
    state = workspace / "state"
    found = (
        ("schedule", "rows/jobs.json", jobs_of(workspace, subject), "cron/jobs.json"),
        ("pairing", "rows/pairing.json", access_of(state, subject), "state/channels.db"),
        ("letter", "rows/parked.json", list(letters), "the queue"),
    )
    for kind, name, rows, source in found:
        if rows:
            yield Extra(kind, name, orjson.dumps(rows, option=orjson.OPT_INDENT_2), source)
    lines = [dump({"key": key, **entry}) + b"\n" for key in journals for entry in journals[key]]
    if lines:
        yield Extra("journal", "rows/journal.jsonl", b"".join(lines), "state/gateway.db")


log = structlog.get_logger("erasing")

# How long a turn that was ended is waited for; it can store nothing any more.
ENDS_WITHIN_S = 10.0
LOOK_S = 0.02
# What a broker may bring again was sent within this time.
AGAIN_WITHIN = timedelta(hours=1)
MEDIA_STAYS = (
    "{} of media/ that other conversations, or waiting messages that could not be read, may refer to; "
)
MEDIA_GOES = "unreferenced files are deleted automatically within 48 hours"
BROKER_STAYS = "messages that wait in RabbitMQ: they will be answered as new ones"
CURSOR_STAYS = "state/channels.db: the id of the last message read from the channel"
JOURNAL_STAYS = (
    "state/gateway.db: the key, the ids of its messages (for 48 hours, to recognise duplicates) and the"
    " number of replies; state/keys: an empty lock file"
)
ACCESS_STAYS = "access to the bot: revoke it with `pairing revoke` or in the configuration"
ELSEWHERE = "on {}, in state.local_dir: search indexes (docs/shared-folders.md)"
CONFIGURED = "the person's entries in [people] and allow_from of the configuration"


class Erasure:
    """Erases, step by step; a kill between two of them leaves a file that says what is owed.

    Args:
        services: the conversations and what belongs to them.
        mailbox: the queue, open; None: there is none yet.
        letters: those of the lanes of this gateway; None: no turn runs here.
    """

    def __init__(
        self,
        settings: Settings,
        services: SessionServices,
        *,
        mailbox: Mailbox | None,
        letters: OpenLetters | None = None,
    ) -> None:
        self._settings = settings
        self._services = services
        self._store = services.store
        self._mailbox = mailbox
        self._open = letters
        self._owed = Owed(settings.state)
        self._subjects = Subjects(services.scope_resolver, store=services.store)

    async def key(self, key: str) -> tuple[Erased, bool]:
        """Erase a conversation; say what was removed, and whether it had a transcript.

        Raises:
            SessionError, GatewayError, ChannelError: it did not end; call it again, or start a daemon.
        """
        subject = await self.subject(key=key)
        had = (await self._store.look(SessionKey(key))).path.exists()
        return await self._erase(subject), had

    async def person(self, name: str) -> Erased:
        """Erase all that is a person's of ``[people]``; raises ``Nobody``, or as ``key``."""
        return await self._erase(await self.subject(person=name))

    async def subject(self, *, key: str = "", person: str = "") -> Subject:
        """Find out what belongs to a key or a person; raises ``NoText`` where it is none."""
        check_text(person or key)
        chats = await asyncio.to_thread(answering, self._settings.workspace)
        waiting = await self._waiting()
        if person:
            return await self._subjects.of_person(person, answering=chats, waiting=waiting)
        return await self._subjects.of_key(key, answering=chats, waiting=waiting)

    async def finish(self) -> None:
        """End what a killed process began, each by itself; what fails is tried at the next start."""
        for path in await start_thread(self._owed.orders, name="erasing"):
            try:
                subject = await start_thread(partial(self._owed.read, path), name="erasing")
                if subject is not None:
                    check_text(subject.name)
                    await self._carry_out(subject, Erased(subject.name), spare_new=True)
                    log.warning("erasure.finished")
            # Whatever is wrong with one order, the chats of all others are waiting for this start.
            except Exception as error:
                known = isinstance(error, (SessionError, GatewayError, ChannelError, OSError))
                log.error(
                    "erasure.unfinished",
                    order=path.name,
                    error=str(error) if known else type(error).__name__,
                    hint=getattr(error, "hint", "") or "chat-gateway doctor",
                    exc_info=not known,
                )

    # -- the steps ---------------------------------------------------------------------------------

    async def _erase(self, subject: Subject) -> Erased:
        # Once the letters are gone nothing else says which files they brought.
        subject = replace(subject, media={**subject.media, **await self._brought(subject)})
        erased = Erased(subject.name, stays=[*subject.stays, *self._what_stays(subject)])
        layout = self._store.layout
        await start_thread(lambda: erasing.count(layout, subject, erased), name="erasing")
        entries, size = await self._journal(subject)
        whole = await start_thread(lambda: self._owed.keep(subject), name="erasing")
        await self._carry_out(whole, erased)
        left, left_size = await self._journal(subject)
        erased.add("journal", entries - left, size - left_size)
        workspace = self._settings.workspace
        erased.stays += await start_thread(partial(unread_jobs, workspace, subject), name="erasing")
        return erased

    async def _carry_out(self, subject: Subject, erased: Erased, *, spare_new: bool = False) -> None:
        """Remove place by place; done again after a kill at any step, it ends the same.

        ``spare_new``: a conversation that began since it was asked for stays. Whoever asks at this moment
        means all of it, a first message that is being stored as well.
        """
        # A turn of a message that comes meanwhile would write beside what is removed.
        if self._open is not None:
            await self._open.close(subject.lanes)
        try:
            await self._removed(subject, erased, spare_new=spare_new)
        finally:
            if self._open is not None:
                await asyncio.shield(self._open.reopen(subject.lanes))

    async def _removed(self, subject: Subject, erased: Erased, *, spare_new: bool) -> None:
        layout = self._store.layout
        entries = await self._entries(subject.keys)
        media: Named = dict(subject.media)
        sizes = await start_thread(lambda: erasing.count_media(layout, media), name="erasing")
        entries += await self._entries(subject.subagents)
        await self._letters(subject, erased)
        # Those of a conversation that stays were begun by the one before it, too.
        for key in subject.keys:
            await end_all(self._services.spawning, self._settings.state, key)
        if self._open is not None:
            for key in subject.subagents:
                await self._open.stop(key)
        for key in subject.keys:
            if not (spare_new and await self._began_anew(key, subject)):
                await self._clear(key, entries)
        await self._ended(entries)
        # What a tool or a job was writing while its conversation went is removed behind it.
        await start_thread(lambda: erasing.remove_late(layout, subject), name="erasing")
        await self._store.state.drop_journals(subject.subagents)
        await self._store.state.compact()
        await self._rows(subject, erased)
        # Letters that were answered at that moment have left a reply behind.
        await self._letters(subject, erased)
        await self._media(media, sizes, erased)
        await start_thread(lambda: self._owed.done(subject), name="erasing")
        log.info("subject.erased", kinds=sorted(erased.removed))

    async def _journal(self, subject: Subject) -> tuple[int, int]:
        journals = await self._store.state.journals(subject.lanes)
        sizes = [len(dump(entry)) for journal in journals.values() for entry in journal]
        return len(sizes), sum(sizes)

    async def _entries(self, keys: Collection[str]) -> list[OpenLetter]:
        return [*(await self._open.of(keys))] if self._open is not None else []

    async def _began_anew(self, key: str, subject: Subject) -> bool:
        """Say whether the lines are gone already, and people have written again since."""
        view = await self._store.look(SessionKey(key))
        return view.path.exists() and view.session_id not in subject.sessions

    async def _clear(self, key: str, entries: Collection[OpenLetter]) -> None:
        await clear(
            key,
            self._store,
            state=self._settings.state,
            services=self._services,
            letters=self._open,
            ids=[entry.id for entry in entries if entry.key == key],
            everything=True,
            awaited=self._awaited,
        )

    async def _ended(self, entries: Collection[OpenLetter]) -> None:
        """Return when the letters have left their lanes, or do not do so in time."""
        ended = {(entry.key, entry.id) for entry in entries}

        async def there() -> bool:
            left = await self._entries({key for key, _ in ended})
            return any((entry.key, entry.id) in ended for entry in left)

        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                # A lane tells nobody that a letter has left it, and this is the only one who asks.
                while ended and await there():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            log.warning("erasure.turn_runs_on")

    async def _brought(self, subject: Subject) -> Named:
        """Return the files that the subject's letters name; what a broker holds elsewhere is not seen."""
        bodies = list[bytes]()
        if isinstance(self._mailbox, EmbeddedMailbox):
            found = await self._mailbox.bodies_with(b"media")
            bodies = [body for body in found if _named_in(body, "key") in subject.lanes]
        elif self._mailbox is not None:
            bodies = [each.body for each in await self._mailbox.parked() if each.key in subject.lanes]
        refs = {ref for entry in await self._entries(subject.lanes) for ref in entry.refs}
        now = self._store.clock()
        return dict.fromkeys([*refs, *(name for body in bodies for name in files_named(body))], now)

    async def _waiting(self) -> dict[str, set[str]]:
        """Return the chats that letters of jobs are to answer; what a broker holds elsewhere is not seen."""
        bodies = list[bytes]()
        if isinstance(self._mailbox, EmbeddedMailbox):
            bodies = await self._mailbox.bodies_with(f"{CRON}:".encode())
        elif self._mailbox is not None:
            bodies = [each.body for each in await self._mailbox.parked()]
        found: dict[str, set[str]] = {}
        for body in bodies:
            key, to = _named_in(body, "key"), _named_in(body, "answer_to")
            if to and split(key)[0] == CRON:
                found.setdefault(key, set()).add(to)
        return found

    async def _letters(self, subject: Subject, erased: Erased) -> None:
        keys, bodies = subject.lanes, list[bytes]()
        if isinstance(self._mailbox, EmbeddedMailbox):
            bodies = await self._mailbox.erase(keys)
        elif self._mailbox is not None:
            for each in await self._mailbox.parked():
                if each.key in keys and await self._mailbox.drop(each.id, key=each.key) is not None:
                    bodies.append(each.body)
        erased.add("letter", len(bodies), sum(map(len, bodies)))

    async def _rows(self, subject: Subject, erased: Erased) -> None:
        state, workspace = self._settings.state, self._settings.workspace
        # What a worker counted and nobody has committed yet would be written behind.
        if self._open is not None:
            await self._open.counted()
        if changed := await forget_usage(self._store.state, subject):
            erased.add("usage", changed)
            await self._store.state.compact()
        before = None if self._settings.broker.embedded else self._store.clock() - AGAIN_WITHIN
        steps = (
            ("schedule", partial(remove_jobs, workspace, subject)),
            ("pairing", partial(forget_access, state, subject)),
            ("delivery", partial(send_log.forget, state, subject.keys, before=before)),
            ("typed", partial(forget_typed, state, subject)),
        )
        for kind, step in steps:
            erased.add(kind, await start_thread(step, name="erasing"))

    async def _media(self, media: Named, sizes: Mapping[str, int], erased: Erased) -> None:
        """Remove the files that nobody else names; ``sizes`` has those that there were at the beginning."""
        layout, now = self._store.layout, self._store.clock()
        awaited = await self._awaited()

        def remove() -> tuple[dict[str, int], dict[str, int]]:
            before = {**erasing.count_media(layout, media), **sizes}
            let_go(layout, media, awaited, now=now)
            return before, erasing.count_media(layout, media)

        before, after = await start_thread(remove, name="erasing")
        gone = [size for name, size in before.items() if name not in after]
        erased.add("media", len(gone), sum(gone))
        if after:
            erased.stays.append(MEDIA_STAYS.format(_files(len(after))) + MEDIA_GOES)

    async def _awaited(self) -> AwaitedFiles:
        if self._mailbox is None:
            return AwaitedFiles(complete=True)
        return await awaited_at_once(self._mailbox)

    def _what_stays(self, subject: Subject) -> list[str]:
        stays = [JOURNAL_STAYS, *([CONFIGURED] if subject.is_person else [])]
        if not subject.is_person and access_of(self._settings.state, subject):
            stays.append(ACCESS_STAYS)
        if not self._settings.broker.embedded:
            stays.append(BROKER_STAYS)
        hosts = {home.host for home in homes_of(self._settings.state) if not home.here}
        stays += [ELSEWHERE.format(host or "another machine") for host in sorted(hosts)]
        channels = {split(key)[0] for key in subject.keys}
        if "discord" in channels:
            stays.append(CURSOR_STAYS)
        own = [key for key in subject.keys if split(key)[0] == CRON and subject.name == key]
        stays += [f"the job itself: chat-gateway cron remove {split(key)[1]}" for key in own]
        stays += [f"state/{name}: a log without message texts" for name in logs(self._settings.state)]
        return stays


def _named_in(body: bytes, field: str) -> str:
    """Return the key that a letter has in a field; empty for none."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    key = found.get(field) if isinstance(found, dict) else None
    return key if isinstance(key, str) else ""


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
