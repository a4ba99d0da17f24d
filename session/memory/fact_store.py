"""Facts of a scope in ``facts.jsonl``, one per line: reads, adds, edits, restores and forgets them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from math import isfinite
from pathlib import Path
from typing import Any

import orjson
import structlog

from durable import BoundedDict
from session.context.embeddings import Embeddings
from session.context.quoted import is_mark, is_quoted, marked
from session.context.relevance import comparable
from session.context.scopes import Scope
from session.disk.layout import Seen, read_file, seen
from session.disk.state import locked, replace_file
from session.disk.threads import start_thread
from session.errors import StoreError
from session.memory.notes import BY_HAND, Version, VersionRules, Versions
from session.memory.text_similarity import nearest, repeats, same
from session.models.model import Payer
from session.models.spending import Meter, OwnMeter, Spending
from session.store.derived import forget as forget_vectors
from session.store.derived import forget_all as forget_all_vectors
from session.store.store import Session, Store
from session.transcript.key import SessionKey

log = structlog.get_logger("facts")

FACTS = "facts.jsonl"
CATEGORIES = ("preference", "background", "pattern", "project", "contact", "decision")


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: its ULID, the text, how sure it is (0 to 1), and the message that it came from.

    ``created_at`` is an ISO time with its offset; ``replaced_by`` the id of the fact that holds instead;
    ``source`` says whose words it is, where they are not those of the chat's own people.
    """

    id: str
    text: str
    category: str
    confidence: float
    key: str
    message_id: str | None
    created_at: str
    replaced_by: str | None = None
    source: str | None = None

    @property
    def told(self) -> str:
        """The text as people and models are shown it, with its source behind it."""
        return marked(self.text, self.source)

    def as_dict(self) -> dict[str, Any]:
        """Return the row of file, command line and API."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fact that was drawn from a conversation, and the id of the known one that it contradicts."""

    fact: Fact
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    raw: bytes
    fact: Fact | None


class FactsFile:
    """The facts of one folder, for any number of writers over all processes; for threads.

    Every method raises StoreError if the disk refuses; the file is then as it was.

    ``lock`` is held while the file is replaced; ``versions`` keeps the former lines of what changes.
    """

    def __init__(self, folder: Path, *, lock: Path, versions: Versions | None = None) -> None:
        self.path = folder / FACTS
        self._lock = lock
        self._versions = versions or Versions(folder)

    def facts(self) -> list[Fact]:
        """Read all facts, replaced ones among them, in the order in which they were stored."""
        return [row.fact for row in self._rows() if row.fact is not None]

    def add(self, drawn: Sequence[Drawn]) -> list[Fact]:
        """Store what is new, and let it replace what it contradicts; doing it twice changes nothing.

        Returns the facts that were stored: those that are there already, or say nothing new, are not.
        """
        with locked(self._lock):
            rows = self._rows()
            fresh, replaced = merged([row.fact for row in rows if row.fact is not None], drawn)
            if fresh or replaced:
                kept = [_renewed(row, replaced) for row in rows]
                self._change(rows, [*kept, *map(_line, fresh)], "facts")
        return fresh

    def remove(self, id_: str) -> Fact | None:
        """Remove a fact for good, and the former ones that it replaced; None where there is none of this id.

        One that only a version still holds counts as well. Whoever has a fact forgotten wants it gone: no
        version keeps it, and those that do let go of it before the file does, so that a crash in between
        leaves it to be forgotten again.
        """
        with locked(self._lock):
            rows = self._rows()
            facts = [row.fact for row in rows if row.fact is not None]
            kept = [row.fact for each in self._versions.all(FACTS) for row in _rows_of(each.read())]
            facts += [fact for fact in kept if fact is not None]
            found = next((fact for fact in facts if fact.id == id_), None)
            if found is not None:
                gone = _with_former(facts, id_)
                self._forget_versions(gone)
                left = [row.raw for row in rows if row.fact is None or row.fact.id not in gone]
                self._change(rows, left, "forget", forgotten=gone)
        return found

    def edit(self, id_: str, text: str) -> Fact | None:
        """Let a fact say what a person wrote, who is its source then; its former line becomes a version.

        Returns the fact as it stands; None where there is none of this id.
        """
        with locked(self._lock):
            rows = self._rows()
            row = next((row for row in rows if row.fact is not None and row.fact.id == id_), None)
            if row is None:
                return None
            content = {**json.loads(row.raw.decode()), "text": " ".join(text.split()), "source": None}
            line = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
            self._change(rows, [line if each is row else each.raw for each in rows], "edit")
        return read_fact(line)

    def notice(self) -> None:
        """Keep the former lines of facts that a person has edited or taken out."""
        with locked(self._lock):
            rows = self._rows()
            if self._keep_edited(rows):
                self._versions.wrote(FACTS, b"".join(row.raw + b"\n" for row in rows))

    def restore(self, version: Version) -> list[Fact]:
        """Let the former lines of a version hold again, in place of the facts that replaced them.

        Returns the facts whose lines changed; none where the file says so already.
        """
        with locked(self._lock):
            rows = self._rows()
            former = {row.fact.id: row for row in _rows_of(version.read()) if row.fact is not None}
            instead = _instead(rows, former)
            lines = [
                former[row.fact.id].raw
                if row.fact is not None and row.fact.id in former
                else _renewed(row, instead)
                for row in rows
            ]
            there = {row.fact.id for row in rows if row.fact is not None}
            lines += [row.raw for id_, row in former.items() if id_ not in there]
            if lines == [row.raw for row in rows]:
                return []
            self._change(rows, lines, "restore")
        return [row.fact for row in former.values() if row.fact is not None]

    def _rows(self) -> list[_Row]:
        if seen(self.path) is None:
            return []
        if not self.path.is_file():
            raise StoreError(f"{FACTS} is not a regular file", hint=f"check {self.path}")
        data = read_file(self.path)
        return _rows_of(data[0] if data is not None else b"")

    def _change(
        self, rows: Sequence[_Row], lines: Sequence[bytes], cause: str, *, forgotten: Collection[str] = ()
    ) -> None:
        """Replace the file; the lines of facts that change, or go, are kept first."""
        self._keep_edited(rows, without=forgotten)
        self._versions.add(FACTS, _former(rows, lines, without=forgotten), cause)
        data = b"".join(line + b"\n" for line in lines)
        # A link that the operator made stays one: the file that it points to is replaced.
        replace_file(Path(os.path.realpath(self.path)), data)
        self._versions.wrote(FACTS, data)

    def _keep_edited(self, rows: Sequence[_Row], *, without: Collection[str] = ()) -> bool:
        """Keep the lines that a person has edited or taken out since the file was last written here."""
        written = self._versions.written(FACTS)
        edited = _former(_rows_of(written or b""), [row.raw for row in rows], without=without)
        self._versions.add(FACTS, edited, BY_HAND)
        return bool(edited)

    def _forget_versions(self, ids: Collection[str]) -> None:
        for version in self._versions.all(FACTS):
            rows = _rows_of(held := version.read())
            left = b"".join(row.raw + b"\n" for row in rows if row.fact is None or row.fact.id not in ids)
            if left != held:
                self._versions.rewrite(version, left)
        rows = _rows_of(self._versions.written(FACTS) or b"")
        if any(row.fact is not None and row.fact.id in ids for row in rows):
            left = b"".join(row.raw + b"\n" for row in rows if row.fact is None or row.fact.id not in ids)
            self._versions.wrote(FACTS, left)


def active(facts: Iterable[Fact]) -> list[Fact]:
    """List the facts that hold: those that no other one replaced."""
    return [fact for fact in facts if fact.replaced_by is None]


def merged(known: Sequence[Fact], drawn: Sequence[Drawn]) -> tuple[list[Fact], dict[str, str]]:
    """Decide what of ``drawn`` is stored.

    Returns the new facts, and which known ids are replaced by which. Exact and near repeats are not new; one
    that contradicts a known fact is compared with the others alone. What a person says replaces the same
    where it is known from a file or a page.
    """
    ids = {fact.id for fact in known}
    holding = {fact.id: fact for fact in active(known)}
    fresh: list[Fact] = []
    replaced: dict[str, str] = {}
    for each in drawn:
        fact, former = each.fact, holding.get(each.replaces or "")
        former = former or next((one for one in holding.values() if _confirms(fact, one)), None)
        says_so = former is not None and same(fact.text, former.text) and not _confirms(fact, former)
        if fact.id in ids or says_so:
            continue
        others = (other for other in holding.values() if other is not former)
        repeated = next((other for other in others if repeats(fact.text, other.text)), None)
        if repeated is None:
            fresh.append(fact)
            holding[fact.id] = fact
        if former is not None:
            replaced[former.id] = fact.id if repeated is None else repeated.id
            del holding[former.id]
    return fresh, replaced


def _confirms(fact: Fact, known: Fact) -> bool:
    if not is_quoted(known.source) or is_quoted(fact.source):
        return False
    return repeats(known.text, fact.text)


# A file of many facts is read again whenever one is added.
@lru_cache(maxsize=20_000)
def read_fact(line: bytes) -> Fact | None:
    """Read a line of the file; None for what is no fact."""
    row = _decoded(line)
    if not isinstance(row, dict):
        return None
    id_, text = row.get("id"), row.get("text")
    if not (isinstance(id_, str) and id_ and isinstance(text, str) and text.strip()):
        return None
    message_id, replaced_by = row.get("message_id"), row.get("replaced_by")
    return Fact(
        id=_written(id_),
        text=" ".join(_written(text).split()),
        category=_written(row.get("category")),
        confidence=_number(row.get("confidence")),
        key=_written(row.get("key")),
        message_id=_written(message_id) or None,
        created_at=_written(row.get("created_at")),
        replaced_by=_written(replaced_by) or None,
        source=_source(row.get("source")),
    )


def _decoded(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        # It takes what orjson does not, such as half of a surrogate pair.
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        return None


def _source(value: object) -> str | None:
    """Return one of the marks; another text could say anything behind the fact."""
    text = _written(value)
    return text if is_mark(text) else None


def _written(value: object) -> str:
    """Return a text that can be written as UTF-8, which JSON does not promise; empty for what is none."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return number if isfinite(number) else 0.0


def _rows_of(data: bytes) -> list[_Row]:
    return [_Row(line, read_fact(line)) for line in data.split(b"\n") if line.strip(b" \t\r\0")]


def _former(rows: Sequence[_Row], lines: Sequence[bytes], *, without: Collection[str] = ()) -> bytes:
    there = set(lines)
    return b"".join(
        row.raw + b"\n"
        for row in rows
        if row.fact is not None and row.raw not in there and row.fact.id not in without
    )


def _instead(rows: Sequence[_Row], former: Mapping[str, _Row]) -> dict[str, str]:
    """Say which facts, that replaced those of ``former`` which held, are replaced by these in turn."""
    by_id = {row.fact.id: row.fact for row in rows if row.fact is not None}
    instead: dict[str, str] = {}
    for id_, row in former.items():
        now = by_id.get(id_)
        if row.fact is None or row.fact.replaced_by is not None or now is None:
            continue
        passed = {id_}
        while now.replaced_by is not None and now.replaced_by in by_id and now.replaced_by not in passed:
            now = by_id[now.replaced_by]
            passed.add(now.id)
        if now.id not in former and now.replaced_by is None:
            instead[now.id] = id_
    return instead


def _line(fact: Fact) -> bytes:
    return json.dumps(fact.as_dict(), ensure_ascii=False).encode("utf-8", "replace")


def _renewed(row: _Row, replaced: Mapping[str, str]) -> bytes:
    """Return the row's line, with the fact that replaces it named; what else it holds stays in it."""
    if row.fact is None or row.fact.id not in replaced:
        return row.raw
    content = json.loads(row.raw.decode())
    changed = {**content, "replaced_by": replaced[row.fact.id]}
    return json.dumps(changed, ensure_ascii=False).encode("utf-8", "replace")


def _with_former(facts: Sequence[Fact], id_: str) -> set[str]:
    gone = {id_}
    while more := {fact.id for fact in facts if fact.replaced_by in gone} - gone:
        gone |= more
    return gone


# So many facts are told with a message.
TOLD = 5
# So many are compared by embeddings; where there are more, those that are nearest by their words.
COMPARED = 100
CACHED = 50


@dataclass(frozen=True, slots=True)
class _Read:
    seen: Seen | None
    facts: Sequence[Fact]
    holding: Sequence[Fact]


class FactStore:
    """Reads and changes the facts of scopes; a file is read again when it has changed.

    Raises StoreError if a file cannot be read or written; the call can be repeated.

    ``embeddings`` compare facts with a message, at the cost of ``cost_meter``; None: their words do.
    """

    def __init__(
        self,
        store: Store,
        *,
        embeddings: Embeddings | None = None,
        cost_meter: Spending | None = None,
        versions: VersionRules | None = None,
    ) -> None:
        self._store = store
        self._versions = versions
        self._embeddings = embeddings
        self._cost_meter = cost_meter
        self._cache: BoundedDict[str, _Read] = BoundedDict(CACHED)

    def file(self, scope: Scope) -> FactsFile:
        """Return the file of a scope, for threads."""
        state = self._store.layout.workspace / "state" / "facts"
        versions = Versions(scope.memory, self._versions, clock=self._store.clock)
        return FactsFile(scope.memory, lock=state / f"{scope.name}.lock", versions=versions)

    async def facts(self, scope: Scope) -> Sequence[Fact]:
        """List all facts of a scope, replaced ones among them, in the order in which they were stored."""
        return (await self._read(scope)).facts

    async def holding(self, scope: Scope) -> Sequence[Fact]:
        """List the facts of a scope that hold; as ``facts``."""
        return (await self._read(scope)).holding

    async def nearest(
        self, scope: Scope, session: Session | None, text: str, *, payer: Payer | None = None
    ) -> list[str]:
        """Return the facts that a message is told with, the nearest first, each with its source.

        There are none where they cannot be read. Without a session, with which vectors are kept, they are
        compared by their words. ``payer`` is for whom vectors count; None: for the conversation alone.
        """
        try:
            read = await self._read(scope)
        except StoreError as error:
            # A turn goes on without what cannot be read.
            log.warning("facts.unreadable", scope=scope.name, error=str(error), hint=error.hint)
            return []
        if len(read.holding) <= TOLD:
            return [fact.told for fact in reversed(read.holding)]
        question = comparable(text)
        near = await _nearest(read.holding, question, COMPARED)
        facts = {read.holding[at].text: read.holding[at] for at in reversed(near)}
        texts = list(dict.fromkeys(read.holding[at].text for at in near))
        scores = await self._compared(session, question, texts, payer)
        if scores is not None:
            texts.sort(key=lambda each: -scores.get(each, -1.0))
        return [facts[each].told for each in texts[:TOLD]]

    async def among(self, scope: Scope, text: str, most: int) -> list[Fact]:
        """List the facts that hold and share the most words with a text, in the order of their storing."""
        read = await self._read(scope)
        near = await _nearest(read.holding, text, most)
        return [read.holding[at] for at in sorted(near)]

    async def forget(self, key: str, scope: Scope, id_: str) -> Fact | None:
        """Take a fact out for good, with the former ones that it replaced, and what was derived of them.

        Returns the fact; None where there is none of this id.
        """
        gone = await self._change(key, scope, lambda file: file.remove(id_))
        if gone is not None:
            log.info("fact.forgotten", key=key, scope=scope.name, fact=id_)
        return gone

    async def edit(self, key: str, scope: Scope, id_: str, text: str) -> Fact | None:
        """Let a fact say what a person wrote; its former words become a version.

        Returns the fact as it stands; None where there is none of this id.
        """
        edited = await self._change(key, scope, lambda file: file.edit(id_, text))
        if edited is not None:
            log.info("fact.edited", key=key, scope=scope.name, fact=id_)
        return edited

    async def _change(
        self, key: str, scope: Scope, change: Callable[[FactsFile], Fact | None]
    ) -> Fact | None:
        layout = self._store.layout
        stem = await self._store.stem(SessionKey(key))
        one_chat = scope.own == f"chats/{stem}"

        def work() -> Fact | None:
            # Under the key's lock no clearing comes in between, whose file would be there again.
            with locked(layout.lock(stem)):
                changed = change(self.file(scope))
                if changed is not None:
                    # Other chats of a scope may have compared it, too.
                    forget_vectors(layout, stem) if one_chat else forget_all_vectors(layout)
                return changed

        return await start_thread(work, name="facts")

    async def _compared(
        self, session: Session | None, question: str, texts: list[str], payer: Payer | None
    ) -> dict[str, float] | None:
        if self._embeddings is None or session is None:
            return None
        payer = payer or Payer(session.key)
        meter = OwnMeter(self._cost_meter, payer) if self._cost_meter is not None else Meter()
        still = partial(session.is_still, session.session_id)
        return await self._embeddings.similarity(session.stem, question, texts, meter, still=still)

    async def _read(self, scope: Scope) -> _Read:
        path = scope.memory / FACTS
        now = seen(path)
        known = self._cache.use(scope.name)
        if known is None or known.seen != now:
            known = self._cache[scope.name] = await asyncio.to_thread(self._load, scope, now)
        return known

    def _load(self, scope: Scope, now: Seen | None) -> _Read:
        facts = self.file(scope).facts() if now is not None else []
        return _Read(now, facts, active(facts))


async def _nearest(facts: Sequence[Fact], text: str, most: int) -> list[int]:
    return await asyncio.to_thread(nearest, [fact.text for fact in facts], text, most)
