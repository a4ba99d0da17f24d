"""The journal of a key: attempts, outcomes that the transcript does not show, the count of what was told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from session.errors import StoreError
from session.transcript.agent import AGENT, agent_in


@dataclass(slots=True)
class Tries:
    """The starts of one message's turn that were not struck out. Pure: grows entry by entry."""

    at: datetime
    # Of each start that was recorded: whether it ran alone.
    _begun: list[bool] = field(default_factory=list)
    _recorded: bool = False
    # The transcript held a line of the message at the first record: one start before that is not recorded.
    _held: bool = False
    _first_struck: bool = False

    @property
    def count(self) -> int:
        """How many starts there were, the unrecorded first one included."""
        return len(self._begun) + (1 if self._held and not self._first_struck else 0)

    @property
    def last_alone(self) -> bool:
        """Whether the newest start ran alone."""
        return bool(self._begun) and self._begun[-1]

    @property
    def only_first_struck(self) -> bool:
        """Whether an unrecorded first start is struck out already and nothing began since."""
        return not self._begun and self._first_struck

    def begin(self, *, held: bool, alone: bool, at: datetime) -> None:
        """Take in a start; ``held``: the transcript had a line of the message then."""
        self._held = self._held if self._recorded else held
        self._recorded = True
        self._begun.append(alone)
        self.at = at

    def strike(self, at: datetime) -> None:
        """Take the newest start out; where none is recorded, the unrecorded first one."""
        if self._begun:
            self._begun.pop()
        else:
            self._first_struck = True
        self.at = at


KEPT = timedelta(hours=48)
REWRITE_BYTES = 64 * 1024
Entry = dict[str, Any]
Kind = Literal["command", "notice", "silent", "parked", "withdrawn", "cleared", "archived"]
ToldKind = Literal["reply", "notice"]
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
# A base entry of no session in particular holds the count so far.
ANY = ""
_TOLD_KINDS = ("command", "notice")
_CORE = ("at", "do", "id", "kind", "text", "reason", "seq", "finals", "session")


@dataclass(frozen=True, slots=True)
class Known:
    """How a message id ended, where the transcript does not show it.

    ``text`` is the reply's or notice's, ``seq`` its number among what the chat was told; ``extra`` holds what
    the writer added (of an ended session: ``archive``, ``session``, whether the turn was ``final``, and
    ``by``: the message whose answer served this one, too).
    """

    kind: Kind
    text: str
    reason: str
    at: datetime
    seq: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """A reply or notice that a chat received; ``seq`` counts them for a key, from 1."""

    seq: int
    kind: ToldKind
    id: str
    text: str
    reason: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """Where the active session stands: its ULID and how many final lines it has."""

    session: str
    finals: int


@dataclass(frozen=True, slots=True)
class Reopening:
    """Which session a command opens again, and which one it ends for it (empty: none with messages)."""

    session: str
    left: str


@dataclass(frozen=True, slots=True)
class _Base:
    """What the counter was when the session had that many final lines."""

    seq: int
    finals: int


class JournalState:
    """What a journal's entries say; grows entry by entry. Pure: times come in, nothing is written."""

    __slots__ = (
        *("_ages", "_bases", "_chosen", "_known", "_old_bytes", "_reopened"),
        *("_said", "_told", "_top", "_tries", "agent", "size"),
    )

    def __init__(self) -> None:
        self._tries: dict[str, Tries] = {}
        self._known: dict[str, Known] = {}
        self._bases: dict[str, _Base] = {}
        # Each with the session of that moment, and how many final lines that had.
        self._told: list[tuple[Told, str, int]] = []
        # Reason and subject of the notices that ended an id.
        self._said: dict[tuple[str, str], datetime] = {}
        self._reopened: dict[str, Reopening] = {}
        # The agent that was chosen for the chat, empty for the default one; None: nobody chose.
        self.agent: str | None = None
        self._chosen: Entry = {}
        # The highest number that any entry names.
        self._top = 0
        # Most chats have no entry, and an empty deque takes 760 bytes.
        self._ages: list[tuple[datetime, int]] = []
        self._old_bytes = 0
        self.size = 0

    def take(self, entry: Entry, size: int) -> None:
        """Take in one entry of ``size`` bytes; what a newer writer of this version added is skipped."""
        at = _read_at(entry.get("at"))
        self._ages.append((at, size))
        self.size += size
        id_ = entry.get("id")
        match entry.get("do"), id_:
            case ("begin" | "strike" | "unpark") as do, str():
                self._take_try(do, id_, entry, at)
            case "end", str():
                known = self._known[id_] = _read_known(entry, at)
                if known.kind == "notice":
                    self._said[known.reason, str(entry.get("about", ""))] = at
                if known.seq is not None:
                    kind: ToldKind = "reply" if known.kind == "command" else "notice"
                    self._add_told(entry, Told(known.seq, kind, id_, known.text, known.reason, at))
            case "notice", str():
                text, reason = str(entry.get("text", "")), str(entry.get("reason", ""))
                self._add_told(entry, Told(_count(entry.get("seq")), "notice", id_, text, reason, at))
            case "base", _:
                base = _Base(_count(entry.get("seq")), _count(entry.get("finals")))
                self._bases[str(entry.get("session"))] = base
            case "reopen", str():
                self._reopened[id_] = Reopening(str(entry.get("session", "")), str(entry.get("left", "")))
            case "agent", str():
                self._chosen = entry
                self.agent = agent_in({AGENT: entry.get("agent")})
            case "ended", _:
                self._take_ended(entry, at)
            case _:
                pass
        self._top = max(self._top, _count(entry.get("seq")))

    def _take_try(self, do: str, id_: str, entry: Entry, at: datetime) -> None:
        if do == "unpark":
            self._tries.pop(id_, None)
            self._known.pop(id_, None)
            return
        tries = self._tries.setdefault(id_, Tries(at))
        if do == "begin":
            tries.begin(held=entry.get("held") is True, alone=entry.get("alone") is True, at=at)
        else:
            tries.strike(at)

    def _add_told(self, entry: Entry, told: Told) -> None:
        self._told.append((told, str(entry.get("session", "")), _count(entry.get("finals"))))

    def _take_ended(self, entry: Entry, at: datetime) -> None:
        ended = str(entry.get("session", ""))
        # Where a crash cut the ending short, it goes on: the count that was noted first stays.
        self._bases.setdefault(ended, self._since(ended)[0])
        self._bases[str(entry.get("next", ""))] = _Base(_count(entry.get("seq")), 0)
        ids = entry.get("ids")
        for id_, end in (ids if isinstance(ids, dict) else {}).items():
            if not isinstance(end, dict):
                continue
            extra = {"archive": entry.get("archive", ""), "session": ended, "final": end.get("final") is True}
            if type(end.get("by")) is str:
                extra["by"] = end["by"]
            known = self._known[id_] = replace(_read_known({"kind": "archived", **end}, at), extra=extra)
            # What the journal said itself it has told by then.
            if known.seq is not None and known.kind == "archived":
                self._told.append((Told(known.seq, "reply", id_, known.text, "", at), "", 0))

    def attempts(self, id_: str, now: datetime) -> int:
        """Count the starts of a turn that were not struck out."""
        tries = self._tries.get(id_)
        return 0 if tries is None or now - tries.at > KEPT else tries.count

    def last_alone(self, id_: str) -> bool:
        """Say whether the newest start that was not struck out ran alone."""
        tries = self._tries.get(id_)
        return tries is not None and tries.last_alone

    def known(self, id_: str, now: datetime) -> Known | None:
        """Return the newest outcome recorded for an id within 48 h."""
        known = self._known.get(id_)
        return None if known is None or now - known.at > KEPT else known

    def has_plain_strike(self, id_: str) -> bool:
        """Say whether an unrecorded first start is struck out already and nothing began since."""
        tries = self._tries.get(id_)
        return tries is not None and tries.only_first_struck

    def seq(self, place: SessionPlace) -> int:
        """Count what the chat was told so far."""
        base, since = self._since(place.session)
        derived = base.seq + max(0, place.finals - base.finals) + len(since)
        return max(derived, since[-1][0].seq if since else 0)

    def seq_of_final(self, place: SessionPlace, number: int) -> int | None:
        """Return the seq of the session's final line ``number`` (from 1); None where it is forgotten."""
        base, since = self._since(place.session)
        if number <= base.finals:
            return None
        return base.seq + number - base.finals + sum(1 for _, _, finals in since if finals < number)

    def _since(self, session: str) -> tuple[_Base, list[tuple[Told, str, int]]]:
        """Return the counter at a session's beginning (or where the journal was cut) and what was told since.

        A session that no entry began (its file is new, or another program's) goes on where all others ended.
        """
        # Most chats were told nothing but answers.
        told = [item for item in self._told if item[1] == session] if self._told else []
        base = self._bases.get(session)
        if base is None and told:
            base = _Base(told[0][0].seq - 1 - told[0][2], 0)
        if base is None:
            base = _Base(self._top, 0)
        return base, [item for item in told if item[0].seq > base.seq] if told else told

    def noted(self, id_: str, reason: str, now: datetime) -> Told | None:
        """Return the newest notice that was recorded for an id and reason within 48 h."""
        for told, _, _ in reversed(self._told):
            if told.id == id_ and told.reason == reason and told.kind == "notice":
                return None if told.at is None or now - told.at > KEPT else told
        return None

    def said(self, reason: str, about: str) -> datetime | None:
        """Return when a notice with this reason and subject last ended an id."""
        return self._said.get((reason, about))

    def reopening(self, id_: str) -> Reopening | None:
        """Return which session a command was about to open again."""
        return self._reopened.get(id_)

    def told(self, after: int) -> list[Told]:
        """List the recorded replies and notices with a seq above ``after``."""
        return sorted((item[0] for item in self._told if item[0].seq > after), key=lambda told: told.seq)

    def overgrown(self, now: datetime) -> bool:
        """Say whether the file is large and most of it no longer needed."""
        old = next((n for n, (at, _) in enumerate(self._ages) if now - at <= KEPT), len(self._ages))
        self._old_bytes += sum(size for _, size in self._ages[:old])
        del self._ages[:old]
        return self.size > REWRITE_BYTES and self._old_bytes * 2 > self.size

    def pruned(self, entries: list[Entry], now: datetime, place: SessionPlace) -> list[Entry]:
        """Return what a rewritten journal must still hold: the young entries, and the counter before them."""
        kept = [entry for entry in entries if now - _read_at(entry.get("at")) <= KEPT]
        base, since = self._since(place.session)
        for told, _, finals in since:
            if told.at is not None and now - told.at > KEPT:
                base = _Base(told.seq, finals)
        heads = [
            {"at": now.isoformat(), "do": "base", "session": session, "seq": seq, "finals": finals}
            for session, seq, finals in ((place.session, base.seq, base.finals), (ANY, self.seq(place), 0))
        ]
        # What was chosen holds however long ago that was.
        chosen = [self._chosen] if self._chosen and self._chosen not in kept else []
        return [*heads, *chosen, *kept]


Build = Callable[[JournalState, SessionPlace], Entry | list[Entry] | None]
Record = Callable[[Build], Awaitable[JournalState]]


class Journal:
    """The journal of a key as a turn uses it: questions are answered from memory, records are synced."""

    def __init__(
        self, look: Callable[[], JournalState], record: Record | None, clock: Callable[[], datetime]
    ) -> None:
        """Answer by what ``look`` returns; without ``record`` nothing is written."""
        self._look = look
        self._record = record or _refuse
        self.clock = clock

    @property
    def state(self) -> JournalState:
        """What the journal says."""
        return self._look()

    def attempts(self, id: str) -> int:
        """Count the starts of this id's turn: records not struck out, and an unrecorded first start."""
        return self._look().attempts(id, self.clock())

    def known(self, id: str) -> Known | None:
        """Return the newest outcome recorded for the id within 48 h; None also after ``unpark``."""
        return self._look().known(id, self.clock())

    def reopening(self, id: str) -> Reopening | None:
        """Return which session the command of this id opens again, known since before it did."""
        return self._look().reopening(id)

    def last_alone(self, id: str) -> bool:
        """Say whether the newest start of this id's turn that was not struck out ran alone."""
        return self._look().last_alone(id)

    async def begin(
        self, id: str, *, transcript_held_lines: bool, alone: bool = False, parts: Sequence[str] = ()
    ) -> int:
        """Record that a turn starts now, ``alone`` or beside others; return the count of starts with it.

        ``parts`` are the ids of other messages that its answer serves, too: each is charged a start.
        """
        entries = [self._entry("begin", id, held=transcript_held_lines, alone=alone)]
        entries += [self._entry("begin", each, held=True, alone=False) for each in parts]
        state = await self._record(lambda _state, _place: entries)
        return state.attempts(id, self.clock())

    async def strike(self, id: str, *, parts: Sequence[str] = ()) -> None:
        """Strike out the last attempt, that of the ``parts`` too: it ended in an outage or a drain."""
        entries = [self._entry("strike", each) for each in (id, *parts)]
        await self._record(
            lambda state, _place: [each for each in entries if not state.has_plain_strike(each["id"])]
        )

    async def conclude(
        self,
        id: str,
        kind: Kind,
        *,
        text: str = "",
        reason: str = "",
        once: bool = False,
        **extra: Any,
    ) -> Known:
        """Record how the id ended (``once``: if nobody did); a command's reply and a notice get a ``seq``."""
        entry = self._entry("end", id, kind=kind, text=text, reason=reason, **extra)
        told = kind in _TOLD_KINDS

        def build(state: JournalState, place: SessionPlace) -> Entry | None:
            if once and state.known(id, self.clock()) is not None:
                return None
            return entry | _numbered(state, place) if told else entry

        state = await self._record(build)
        known = state.known(id, self.clock())
        return known if known is not None else Known(kind, text, reason, self.clock(), None, extra)

    async def silence(self, ids: Sequence[str], *, text: str, reason: str) -> None:
        """Record in one write that each of the ids ended without a word to its chat."""
        ended = [self._entry("end", each, kind="silent", text=text, reason=reason) for each in ids]
        await self._record(lambda _state, _place: ended)

    async def note(self, id: str, *, reason: str, text: str) -> Told:
        """Record a notice that does not end its id (an outage, a full lane), so that it gets a ``seq``."""
        entry = self._entry("notice", id, reason=reason, text=text)
        state = await self._record(lambda state, place: entry | _numbered(state, place))
        noted = state.noted(id, reason, self.clock())
        return noted or Told(state.seq(SessionPlace(ANY, 0)), "notice", id, text, reason, self.clock())

    def noted(self, id: str, reason: str) -> Told | None:
        """Return the notice that was recorded for this id and reason, so that it is told only once."""
        return self._look().noted(id, reason, self.clock())

    def said(self, reason: str, about: str) -> datetime | None:
        """Return when ``conclude`` last ended an id in a notice with this reason and ``about``."""
        return self._look().said(reason, about)

    @property
    def agent(self) -> str | None:
        """The agent that was chosen for the chat, empty for the default one; None where nobody chose."""
        return self._look().agent

    async def choose(self, id: str, agent: str) -> None:
        """Record that the message of this id chose an agent; empty is the default one."""
        entry = self._entry("agent", id, agent=agent)
        await self._record(lambda state, _place: None if state.agent == agent else entry)

    async def unpark(self, id: str) -> None:
        """Forget outcome and attempts of a parked letter that is put back by hand."""
        entry = self._entry("unpark", id)
        await self._record(lambda _state, _place: entry)

    def _entry(self, do: str, id_: str, **fields: Any) -> Entry:
        clash = [name for name in fields if name in ("at", "do", "id", "seq", "finals", "session")]
        if clash:
            raise ValueError(f"names that a journal entry keeps for itself: {clash}")
        return {"at": self.clock().astimezone(UTC).isoformat(), "do": do, "id": id_, **fields}


async def _refuse(build: Build) -> JournalState:
    raise StoreError("this conversation was opened read-only")


def _numbered(state: JournalState, place: SessionPlace) -> Entry:
    return {"seq": state.seq(place) + 1, "finals": place.finals, "session": place.session}


def _read_known(entry: Entry, at: datetime) -> Known:
    seq, extra = entry.get("seq"), {name: value for name, value in entry.items() if name not in _CORE}
    return Known(
        cast(Kind, str(entry.get("kind", "notice"))),
        str(entry.get("text", "")),
        str(entry.get("reason", "")),
        at,
        seq if type(seq) is int else None,
        extra,
    )


def _read_at(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else _LONG_AGO
    except ValueError:
        return _LONG_AGO
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0
