"""What an edit does: it replaces the text of a message, also in later requests once that was asked.

A deletion is an edit with ``deleted`` in its ``meta``: the message that waits is not asked, and one that was
is left out of later requests. Whether a message was asked is read from the transcript, at its next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from channels.message import Inbound, Sender
from gateway.dispatch import messages
from gateway.dispatch.batching import QueueModes
from gateway.dispatch.context import Ending, MessageContext
from gateway.dispatch.lanes import Lane, PendingMessage
from session.context.request import LONG_HISTORY
from session.store.store import Session
from session.transcript.history import new_texts, with_text
from session.transcript.transcript import make_line
from session.turn import commands
from session.turn.joining import only_asks, stopped_before, undo_from
from session.turn.turn import Reply


class Edits:
    """The step that does edits and deletions; a deleted message that others wait for is asked without words.

    Args:
        modes: know whether a deleted message has a turn all the same.
        now: the timestamp of a line that is written now.
    """

    def __init__(self, modes: QueueModes, *, now: Callable[[], str]) -> None:
        self._modes = modes
        self._now = now

    async def take(self, message: MessageContext) -> Ending | None:
        """Return how an edit or a deleted message ends."""
        entry, session = message.entry, message.session
        if entry.inbound.kind == "edit":
            return await settle(session, entry.inbound, at=self._now())
        if entry.deleted and self._modes.stands_in(entry, session):
            entry.inbound, message.command = emptied(entry.inbound), commands.Command("retry")
        elif entry.deleted or entry.edited is not None:
            return await overtaken(session, entry, at=self._now())
        return None


def is_deletion(edit: Inbound) -> bool:
    """Say whether an edit takes its message back."""
    return edit.kind == "edit" and edit.meta.get("deleted") is True


def takes_out(lane: Lane, edit: Inbound) -> bool:
    """Say whether an edit takes back a message that waits, and that nothing has taken back yet."""
    if edit.platform_id is None or not is_deletion(edit):
        return False
    waiting = (entry for entry in lane.entries if entry.inbound.kind == "message" and not entry.deleted)
    return any(entry.inbound.platform_id == edit.platform_id for entry in waiting)


def replace(lane: Lane, edit: Inbound) -> None:
    """Give the new text to a message that waits, and to an older edit of it, which then changes nothing.

    The edit stays in the lane behind it: after a crash the message comes again as it was. An edit to a
    command replaces nothing: whether this person may send it was asked of the message, never of the edit.
    What is stored of a message that was tried, here or in an earlier process, decides at its next try
    (``overtaken``); a command that was tried goes on.
    """
    if edit.platform_id is None:
        return
    deleted = is_deletion(edit)
    if not deleted and commands.parse(edit.text) is not None:
        return
    for entry in lane.entries:
        inbound = entry.inbound
        if inbound.platform_id != edit.platform_id or inbound.id == edit.id:
            continue
        tried = entry is lane.running or entry.tries.waits or entry.tries.crashes
        is_question = inbound.kind == "message" and messages.command(inbound) is None
        if tried and not is_question:
            continue
        if deleted:
            # A pressed button has the id of the message that it stands below.
            entry.deleted = inbound.kind == "message"
        elif tried or (is_question and entry is lane.entries[0]):
            entry.edited = edit.text
        else:
            entry.inbound = inbound.model_copy(update={"text": edit.text})


def emptied(inbound: Inbound) -> Inbound:
    """Return a message that was deleted without what was in it, for a turn that asks something else."""
    nothing: dict[str, Any] = {
        "text": "",
        "platform_id": None,
        "attachments": [],
        "quoted": None,
        "forwarded_from": None,
    }
    return inbound.model_copy(update=nothing)


async def overtaken(session: Session, entry: PendingMessage, *, at: str) -> Reply | None:
    """End a message silently that was deleted before it was answered, or give one its new text.

    A deletion does not end a turn of which more is stored than questions, or that is to answer what was
    stopped for it. The new text of a stored question is noted, so that its next request shows it. ``at`` is
    the timestamp of a line.

    Returns:
        None: the message is asked, or its turn goes on.

    Raises:
        Fenced, StoreError: call it again.
    """
    inbound, found = entry.inbound, session.find(entry.inbound.id)
    is_stored = found is not None and found.tail
    if not entry.deleted:
        if found is not None and is_stored:
            texts = new_texts((record, session.line(record)) for record in session.records())
            text = with_text(session.line(found.start), found.start, texts)
            if text.get("content") != entry.edited:
                await session.append([_note(inbound.id, entry.edited or "", at, inbound.sender)])
        entry.inbound = inbound.model_copy(update={"text": entry.edited})
        return None
    if found is not None and is_stored:
        if stopped_before(session, found.start) is not None or not only_asks(session, found):
            return None
        # Messages that entered the turn are asked without it.
        await session.append([undo_from(found.start, at)])
    await session.journal.conclude(inbound.id, "withdrawn", reason="deleted")
    return Reply(silent=True)


async def settle(session: Session, edit: Inbound, *, at: str) -> Reply:
    """Compare an edit with what is stored of its message, and note it where that says something else.

    ``at`` is the timestamp of the line.

    Raises:
        Fenced, StoreError: nothing was written.
    """
    long = len(session) > LONG_HISTORY
    found = await asyncio.to_thread(_standing, session, edit) if long else _standing(session, edit)
    if is_deletion(edit):
        if found is not None and found[1] is not None:
            await session.append([_note(found[0], "", at, Sender(), deleted=True, message_id=edit.id)])
        return Reply(silent=True)
    if found is None:
        if session.journal.known(edit.id) is None:
            await session.journal.conclude(edit.id, "silent", reason="edit")
        return Reply(silent=True)
    message_id, text = found
    if text is not None and text != edit.text:
        await session.append([_note(message_id, edit.text, at, edit.sender, message_id=edit.id)])
    return Reply(silent=True)


def _note(edits: str, text: str, at: str, sender: Sender, **fields: object) -> dict[str, Any]:
    """Build the record of a message's newest text; recall names its sender, as for the message itself."""
    said_by = {name: value for name, value in sender.model_dump().items() if value} or None
    return make_line("system", text, at, kind="note", edits=edits, sender=said_by, **fields)


def _standing(session: Session, edit: Inbound) -> tuple[str, str | None] | None:
    """Return the id of the message that is changed, and its text by now, None where it was deleted.

    None in place of both: it is not stored.

    An edit that was noted already says what it says, whatever came after it.
    """
    index = session.find_sent(edit.platform_id) if edit.platform_id is not None else None
    if index is None:
        return None
    line = session.line(index)
    message_id, text = str(line.get("message_id")), str(line.get("content") or "")
    newest = True
    for record in reversed(session.records()):
        if record < index:
            break
        note = session.line(record)
        if note.get("kind") != "note" or note.get("edits") != message_id:
            continue
        if note.get("message_id") == edit.id:
            return message_id, None if is_deletion(edit) else edit.text
        if note.get("deleted") is True:
            return message_id, None
        if newest:
            text, newest = str(note.get("content") or ""), False
    return message_id, text
