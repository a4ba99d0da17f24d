"""What a person can ask of the gateway itself, each by a command of its own."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, datetime
from functools import partial
from typing import Protocol

import durable
from session.approvals.answers import NOTHING_WAITS, Answers, Word
from session.compaction.compactions import Compacted, Compactions, was_too_long
from session.disk.layout import Layout
from session.disk.threads import start_thread
from session.errors import NoSession, NotCompacted
from session.models.spending import COST_SAID
from session.store import rollover
from session.store.listing import message_count
from session.store.store import Session
from session.transcript import archive, history
from session.transcript.agent import agent_in, shown
from session.transcript.attachments import attachments_of, quoted_of
from session.transcript.line import is_ulid
from session.transcript.loading import read_beginning
from session.turn.command_names import ALIASES, DESCRIPTIONS
from session.turn.joining import undo_from
from session.turn.reply import StopSwitch, TurnStopped
from session.turn.tool_calls import named
from session.turn.turn import Request

_FORM = re.compile(r"/([A-Za-z][A-Za-z0-9_]*)(?:@[A-Za-z0-9_]+)?(?:\s+(.*))?", re.DOTALL)

_FORGETS = re.compile(r"forget(?!\S)", re.IGNORECASE)
# What a turn waits for.
DECIDING = frozenset({"approve", "deny"})
# These are answered while a turn runs: they are about that turn.
OUT_OF_LINE = frozenset({"stop", "status"}) | DECIDING

NOTHING_REMEMBERED = "Nothing is remembered about this chat yet."
NOTHING_RUNS = "Nothing is running."
STOPPED = "Stopped."
SUBAGENTS_STOPPED = "Stopped, including its subagents."
BEGUN = "A new conversation begins. The previous one is kept and moved into memory in the background."
BEGUN_EMPTY = "A new conversation begins."
NOTHING_OLDER = "There is no older conversation to go back to."
NO_SUCH_NUMBER = "The older conversations are numbered from 1 (newest) to {}."
NO_SUCH_ONE = "There is no such older conversation here."
ANOTHERS = "That conversation is with {}: /agent {} first, then /resume."
REOPENED = "The conversation continues{}: {} messages."
WITHDRAWN = "Your last message and its answer are withdrawn; the model no longer sees them."
NOTHING_TO_WITHDRAW = "There is nothing to withdraw."
COMPACTED = "{} summarised now: about {:,} tokens of history became {:,}."
NOTHING_TO_COMPACT = "There is nothing to compact: everything is recent enough to be kept."
NOTHING_WORTH = "There is nothing worth compacting: a summary would not be shorter."
STILL_TOO_LONG = (
    "It is still too long for the language model. Use /new to start over; if that does not help, "
    "the operator can choose a model with a larger context window."
)
NOT_COMPACTED = "The conversation could not be summarised just now; nothing was changed. Try again later."
COMPACTING_STOPPED = "Stopped: nothing was compacted."
_REFUSED = {"plain": NOTHING_TO_COMPACT, "little": NOTHING_WORTH, "cost": COST_SAID}
NOTHING_TO_RETRY = "There is no message to repeat."


class EndSubagents(Protocol):
    """Ends the subagents of a conversation."""

    async def __call__(self, key: str, by: str, *, results: bool = False) -> int:
        """End those of ``key`` for the message ``by``, once for each; return how many it ended."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """A command as typed: its name in lower case without the slash, and what follows it."""

    name: str
    rest: str = ""


class NotChosen(Exception):
    """``/resume`` means no older conversation; ``str(error)`` is what its chat is told."""


def parse(text: str) -> Command | None:
    """Read a text that begins with ``/`` and a letter; None where it is no command."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return None
    name, rest = match[1].lower(), (match[2] or "").strip()
    forgets = _FORGETS.match(rest) if name == "memory" else None
    if forgets is not None:
        # The same command: who may not give the one may not give the other.
        name, rest = "forget", rest[forgets.end() :].strip()
    return Command(ALIASES.get(name, name), rest)


class Commands:
    """Runs commands on the open session of their chat.

    Args:
        status: lines of the daemon for a key (model, waiting letters).
        memory: what is remembered in the scope of session and request, empty where nothing is.
        forget: takes the fact of this number out, and says what it did; None: there are no facts.
        ended: makes the background work for an ended session durable; called with the session that ended it.
        left: the same for the session of this ULID, which ended because an older one was opened again.
        compact: compacts conversations; None: this model is sent no history.
        answers: takes a person's word about what waits; None: nothing ever does.
        limits: lines that say what is left of them to whoever sent the message; None: there are none.
        end_subagents: ends those of a chat; None: there are none.
        now: the timestamp of a line that is written now.
        more: commands that are somebody else's, with what ``/help`` says of them.
    """

    def __init__(
        self,
        *,
        status: Callable[[str], list[str]],
        memory: Callable[[Session, Request], Awaitable[str]],
        forget: Callable[[Session, Request, str], Awaitable[str]] | None = None,
        ended: Callable[[Session], Awaitable[bool]],
        left: Callable[[str, str], Awaitable[bool]],
        compact: Compactions | None = None,
        limits: Callable[[Request], Awaitable[list[str]]] | None = None,
        end_subagents: EndSubagents | None = None,
        answers: Answers | None = None,
        now: Callable[[], str] = lambda: durable.now().isoformat(timespec="microseconds"),
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._status = status
        self._memory = memory
        self._forget = forget
        self.ended = ended
        self._left = left
        self._compactions = compact
        self._limits = limits
        self._end_subagents = end_subagents
        self.answers = answers
        self._now = now
        self._named = {**DESCRIPTIONS, **(more or {})}

    async def run(
        self, session: Session, command: Command, request: Request, *, stop: StopSwitch | None = None
    ) -> str | Request:
        """Do what ``command`` says; doing it twice for one request does no harm.

        Args:
            session: held open.
            command: as it was typed.
            request: the message that it came in.
            stop: ends what takes long.

        Returns:
            The answer's text; of ``/retry`` what the model is to be asked, under the command's own id.
        """
        match command.name:
            case "new":
                await self._subagents_ended(session, request.id, results=True)
                await session.end()
                return BEGUN if await self.ended(session) else BEGUN_EMPTY
            case "stop":
                # A running turn was stopped out of line, before this letter's turn; subagents mostly, too.
                ended = await self._subagents_ended(session, request.id)
                if session.stopped_by(request.id) is not None:
                    return STOPPED
                return SUBAGENTS_STOPPED if ended else NOTHING_RUNS
            case "status":
                left = await self._limits(request) if self._limits is not None else []
                return "\n".join([*self._status(session.key), *left, *_of_session(session)])
            case "resume":
                return await self._resume(session, command.rest, request.id)
            case "undo":
                at = await self._withdraw(session, request.id)
                return WITHDRAWN if at is not None else NOTHING_TO_WITHDRAW
            case "retry":
                return await self._retry(session, request)
            case "compact":
                return await self._compact(session, command.rest, request.id, stop or StopSwitch())
            case "memory":
                return await self._memory(session, request) or NOTHING_REMEMBERED
            case "forget":
                return await self._take_out(session, request, command.rest)
            case "approve":
                return await self._decide("allow", command.rest, request)
            case "deny":
                return await self._decide("deny", command.rest, request)
            case "help":
                return "\n".join(f"/{name} {what}" for name, what in self._named.items())
            case _:
                return _unknown(command.name, self._named)

    async def _subagents_ended(self, session: Session, id_: str, *, results: bool = False) -> int:
        if self._end_subagents is None:
            return 0
        return await self._end_subagents(session.key, id_, results=results)

    async def _decide(self, word: Word, id_: str, request: Request) -> str:
        if self.answers is None:
            return NOTHING_WAITS
        chat, by = str(request.key), named(request.sender)
        id_, at = id_.strip().lower(), _said_at(request)
        return await self.answers.say(word, id_, chat=chat, by=by, via=request.id, at=at)

    async def _take_out(self, session: Session, request: Request, number: str) -> str:
        if self._forget is None:
            return NOTHING_REMEMBERED
        return await self._forget(session, request, number)

    async def _compact(self, session: Session, focus: str, id_: str, stop: StopSwitch) -> str:
        if self._compactions is None:
            return NOTHING_TO_COMPACT
        try:
            async with stop:
                done = await self._compactions.asked(session, focus, id_)
        except NotCompacted as error:
            words = _REFUSED.get(error.reason, NOT_COMPACTED)
            return _and_now(session, words) if error.reason == "little" else words
        except TurnStopped:
            # The stop may have come after the summary was stored: then it is told as done.
            done = await self._compactions.done_by(session, id_)
            return _compacted(done) if done is not None else COMPACTING_STOPPED
        return _compacted(done) if done is not None else _and_now(session, NOTHING_TO_COMPACT)

    async def _resume(self, session: Session, rest: str, id_: str) -> str:
        # After a crash the command comes again, and "the one before" would be the session that it left.
        aim = session.journal.reopening(id_)
        try:
            chosen = aim.session if aim is not None else await _choose(session, rest)
            swap = await session.change(partial(rollover.reopen, session_id=chosen, by=id_))
        except NotChosen as error:
            return str(error)
        except NoSession:
            # It was there when it was chosen: retention or a person may have deleted it since.
            return NO_SUCH_ONE
        if swap.left:
            await self._subagents_ended(session, id_, results=True)
            await self._left(session.key, swap.left)
        name = session.metadata.get("name")
        return REOPENED.format(f" ({name})" if name else "", message_count(session.transcript))

    async def _withdraw(self, session: Session, id_: str) -> int | None:
        """Withdraw the last exchange; return where it begins, also where this command did so before.

        One that was set aside since the last message is meant, though it is withdrawn already.
        """
        messages, records = session.transcript.messages, session.records()
        at = history.withdrawn_by(messages, records, id_)
        if at is not None:
            return at
        at = history.set_aside(messages, records)
        if at is None:
            at = history.last_exchange(messages, records, history_start=session.history_start)
        if at is not None:
            await session.append([undo_from(at, self._now(), message_id=id_)])
        return at

    async def _retry(self, session: Session, request: Request) -> str | Request:
        at = await self._withdraw(session, request.id)
        if at is None:
            return NOTHING_TO_RETRY
        asked = history.questions(session.transcript.messages, at)
        files = [file for line in asked for file in attachments_of(line)]
        quoted = next(filter(None, map(quoted_of, asked)), {})
        forwarded = next((str(line["forwarded_from"]) for line in asked if line.get("forwarded_from")), "")
        return replace(
            request,
            text=history.text_of(asked),
            attachments=files,
            quoted={name: value for name, value in quoted.items() if name != "attachments"},
            forwarded_from=forwarded,
            typed=request.text,
        )


async def _choose(session: Session, rest: str) -> str:
    """Return the ULID of the ended session that ``/resume`` means.

    Raises:
        NotChosen: it means none; its text tells the chat why.
    """
    layout, stem, agent = Layout(session.path.parents[1]), session.stem, agent_in(session.metadata)
    if is_ulid(rest.upper()):
        found = await start_thread(lambda: archive.find(layout, rest.upper(), stem=stem), name="disk-look")
        whose = await start_thread(lambda: _agent_of(found), name="disk-look") if found is not None else agent
        if whose != agent:
            raise NotChosen(ANOTHERS.format(shown(whose or ""), shown(whose or "")))
        return rest.upper()

    def conversations() -> list[archive.Archived]:
        found = (each for each in archive.of_stem(layout, stem) if not archive.goes_on(each))
        return [each for each in found if _agent_of(each) == agent]

    ended = await start_thread(conversations, name="disk-look")
    older = list(dict.fromkeys(archived.session_id for archived in reversed(ended)))
    older = [id_ for id_ in older if id_ != session.session_id]
    if not older:
        raise NotChosen(NOTHING_OLDER)
    number = int(rest) if rest.isascii() and rest.isdigit() and len(rest) < 9 else 0 if rest else 1
    if not 1 <= number <= len(older):
        raise NotChosen(NO_SUCH_NUMBER.format(len(older)))
    return older[number - 1]


def _agent_of(found: archive.Archived) -> str | None:
    head = read_beginning(found.path, found.stem)
    return agent_in(head.inner) if head is not None else None


def _said_at(request: Request) -> datetime | None:
    """Return when a message was written, else accepted; None where neither is told with its zone."""
    for text in (request.sent_at, request.received_at):
        with contextlib.suppress(ValueError):
            at = datetime.fromisoformat(text)
            if at.tzinfo is not None and MINYEAR < at.year < MAXYEAR:
                return at
    return None


def _and_now(session: Session, words: str) -> str:
    """Add what else may help where there is no room to be made though the model found it too long."""
    return f"{words} {STILL_TOO_LONG}" if was_too_long(session) else words


def _compacted(done: Compacted) -> str:
    count = "1 turn is" if done.turns == 1 else f"{done.turns} turns are"
    return COMPACTED.format(count, done.tokens_before, done.tokens_after)


def _of_session(session: Session) -> list[str]:
    name = session.metadata.get("name")
    count = message_count(session.transcript)
    lines = [
        f"session: {session.session_id}{f' ({name})' if name else ''}, {count} message{'s' * (count != 1)}"
    ]
    for at in reversed(session.records()):
        record = session.line(at)
        if record["kind"] in ("overlay", "compact"):
            lines.append(f"compacted: {record.get('compacted_turns')} turns, at {record.get('timestamp')}")
            break
    return lines


def _unknown(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"There is no command /{name}. Did you mean /{near[0] if near else 'help'}?"
