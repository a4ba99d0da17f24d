"""Brings the index of a scope up to date: of each of its files only new content is read. Runs in threads.

Large amounts of text are read by a process of its own, so that turns do not wait for it. It is told on
standard input what to read. That stays open: its end means that nobody waits.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import Final, Literal, NamedTuple

import structlog

import durable
from durable import NOTHING, spawn
from session.context.scopes import answers_in
from session.disk.layout import FileCache, Layout, Seen, pread, read_file, seen
from session.errors import StoreError
from session.recall.index import Kind, Piece, Source, WordIndex, stands
from session.recall.reading import FACTS, of_line, of_notes, taken_back, withdrawn
from session.transcript import archive
from session.transcript.agent import agent_in
from session.transcript.line import beginning, decode
from session.transcript.lines import walk
from session.transcript.loading import blocks, load, read_beginning, sound
from session.transcript.transcript import Transcript, parse

log = structlog.get_logger("recall")

# Which chats a job has answered in a session, in the order of their keys.
Answers = tuple[str, ...]


class Whose(NamedTuple):
    """What line 1 says of who a session belongs to."""

    agent: str
    answers: Answers


def _whose(path: Path, data: bytes) -> Whose | None:
    transcript = parse(data, stem=path.stem)
    if transcript.damage.heads == 0 and not _begins_soundly(parse(data.partition(b"\n")[0], stem=path.stem)):
        return None
    inner = transcript.inner
    return Whose(agent_in(inner), tuple(sorted(answers_in(inner))))


def _begins_soundly(first: Transcript) -> bool:
    """Say whether a file without metadata never had any, as other programs write it, and did not lose it."""
    damage = first.damage
    return not first.damaged and bool(first.messages or damage.strays or damage.uncounted)


# Whose sessions the files are, as far as the index of the scope does not say it; None: nobody knows.
WHOSE: FileCache[Whose | None] = FileCache(_whose, take=lambda file: beginning(file) or b"")


@dataclass(frozen=True, slots=True)
class ScopeFiles:
    """What a scope's index is made of: its notes, and each of its conversations as ``(key, stem)``.

    Of these only the sessions of ``agent`` are the scope's, and of a job those alone whose answers stand in
    ``answers`` under its key.
    """

    layout: Layout
    memory: Path
    conversations: Sequence[tuple[str, str]]
    agent: str = ""
    answers: Mapping[str, Collection[Answers]] = field(default_factory=dict)


class ScopeFile(NamedTuple):
    """A file as it was seen; each search makes one of every ended session."""

    kind: Kind
    key: str
    stem: str
    path: str
    seen: tuple[int, int, int]
    session: str = ""

    @property
    def name(self) -> tuple[str, str, str]:
        """What tells it from the others, wherever it lies."""
        return (self.kind, self.stem, self.session)


# So many lines go into one transaction, which takes a few milliseconds; more of them beside other processes,
# which wait for less than half a second.
BATCH_LINES, BULK_LINES = 200, 1_000
# More than this is no work for a thread beside turns.
BULK_BYTES = 2**21
# Words that lead nowhere: from so many on, and as many as others, the index is begun anew.
MANY_GHOSTS = 2_000
# After so many new ones the words of the index are put together.
MANY_ROWS = 300
# So much of a file that grew is compared with what is known of it, in a few milliseconds.
COMPARED_BYTES = 2**22
_TRIES = 3


class Overtaken(Exception):
    """Another process, or thread, has changed the index meanwhile."""


class Bulk(Exception):
    """There is so much to read that a process of its own is worth its start; nothing was read yet."""


class OutOfTime(Exception):
    """There is more to read than there was time for; what was read stays in the index."""


class Update:
    """One pass over the files of a scope.

    ``rest`` is called after each transaction with the seconds that the work before it took. It stops at
    ``until`` (monotonic), and reads nothing where that would be more than ``most_bytes`` (None: no limit);
    ``batch_lines`` go into a transaction.
    """

    def __init__(
        self,
        index: WordIndex,
        files: ScopeFiles,
        *,
        rest: Callable[[float], None] = lambda _: None,
        until: float | None = None,
        most_bytes: int | None = None,
        batch_lines: int = BATCH_LINES,
    ) -> None:
        self._index = index
        self._files = files
        self._rest = rest
        self._until = until
        self._most_bytes = most_bytes
        self._batch_lines = batch_lines
        self._began = durable.monotonic()
        self._added = 0

    def run(self) -> bool:
        """Read what is new; say whether the index holds everything now.

        Raises:
            Bulk: there are more than ``most_bytes`` to read; nothing was done but that what is gone is found
                no more.
        """
        for _ in range(_TRIES):
            try:
                return self._pass()
            except Overtaken:
                continue
            except OutOfTime:
                return False
            except (OSError, StoreError) as error:
                log.warning("recall.not_updated", file=self._index.path.name, error=str(error))
                return False
        return False

    def _pass(self) -> bool:
        sources = self._index.sources()
        if sources is None:
            return False
        known = {source.path: source for source in sources}
        files = [self._named(file, known.get(file.path)) for file in self._there(known)]
        wanted = {file.name for file in files if file.kind != "message" or file.session}
        gone = [source for source in sources if source.name not in wanted]
        if gone:
            # First of all: what was deleted is found no more, whatever else there is to do.
            self._let_go(gone)
            if not self._index.inode():
                raise Overtaken
        by_name = {source.name: source for source in sources if source.name in wanted}
        # Of a session that a crash left in two places the active one is read.
        once = {file.name: file for file in reversed(files)}
        news = [
            (file, source)
            for file in once.values()
            if (source := by_name.get(file.name)) is None
            or source.seen != file.seen
            or source.path != file.path
        ]
        if self._most_bytes is not None and sum(starmap(_unread, news)) > self._most_bytes:
            raise Bulk
        for file, source in news:
            self._take_in(file, source)
        if self._added >= MANY_ROWS:
            self._merge()
        return True

    def _merge(self) -> None:
        more = self._index.merge(first=True)
        while more:
            self._pause()
            more = self._index.merge(first=False)
        self._added = 0

    def _let_go(self, gone: Sequence[Source]) -> None:
        if not self._index.drop(gone):
            raise Overtaken
        # Their words would lie in the index for as long as it stands.
        self._index.discard()

    # -- the files ---------------------------------------------------------------------------------

    def _there(self, known: Mapping[str, Source]) -> Iterator[ScopeFile]:
        layout, memory = self._files.layout, self._files.memory
        notes: tuple[tuple[Kind, str], ...] = (
            ("memory", "MEMORY.md"),
            ("history", "HISTORY.md"),
            ("fact", FACTS),
        )
        for kind, name in notes:
            if (found := seen(memory / name)) is not None and (memory / name).is_file():
                yield ScopeFile(kind, "", "", str(memory / name), found)
        for key, stem in self._files.conversations:
            path = str(layout.transcript(stem))
            if (found := seen(path)) is not None and self._is_ours(key, path, found, known):
                yield ScopeFile("message", key, stem, path, found)
            folder = str(layout.archive(stem))
            for name, session in archive.names_of(layout, stem):
                path = f"{folder}/{name}"
                if (found := seen(path)) is not None and self._is_ours(key, path, found, known):
                    yield ScopeFile("message", key, stem, path, found, session)

    def _is_ours(self, key: str, path: str, now: Seen, known: Mapping[str, Source]) -> bool:
        """Say whether a session is that of the scope's agent, by line 1 where the index has no such file.

        That of a job is asked each time: whom the job answers by now decides over its former sessions, too.
        """
        source, answers = known.get(path), self._files.answers.get(key)
        if answers is None and source is not None and source.seen == now:
            return True
        whose = WHOSE.get(Path(path))
        if whose is None or whose.agent != self._files.agent:
            return False
        return answers is None or whose.answers in answers

    def _named(self, file: ScopeFile, known: Source | None) -> ScopeFile:
        if file.kind != "message" or file.session:
            return file
        if known is not None and known.seen == file.seen and known.key == file.key:
            return file._replace(session=known.session)
        transcript = read_beginning(Path(file.path), file.stem)
        ours = transcript is not None and transcript.key == file.key
        return file._replace(session=transcript.session_id if transcript is not None and ours else "")

    # -- taking in ---------------------------------------------------------------------------------

    def _take_in(self, file: ScopeFile, source: Source | None) -> None:
        if file.kind != "message":
            self._take_notes(file, source)
            return
        if not file.session:
            return
        if source is not None and _only_grew(file, source):
            lines = self._appended(file, source)
            if lines is not None:
                self._take_lines(file, source, lines)
                return
        read = load(Path(file.path), file.stem)
        if read is None:
            raise Overtaken
        transcript, now = read
        file = file._replace(seen=now)
        if transcript.key != file.key:
            if source is not None:
                self._let_go([source])
                raise Overtaken
            return
        if source is not None and not _continues(transcript, source):
            # It was edited by hand: what it held before is found no more.
            self._let_go([source])
            raise Overtaken
        source = source or self._begin(file)
        source = replace(source, base=transcript.body_at)
        self._take_lines(file, source, walk(transcript.messages, source.lines))

    def _begin(self, file: ScopeFile) -> Source:
        new = self._index.begin(Source(0, file.kind, file.key, file.stem, file.session, file.path))
        if new is None:
            raise Overtaken
        return new

    def _appended(self, file: ScopeFile, source: Source) -> list[bytes] | None:
        """Read the lines that came since; None where the file must be looked at as a whole."""
        lines: list[bytes] = []
        with Path(file.path).open("rb", buffering=0) as opened:
            begin = source.base + source.next
            if os.fstat(opened.fileno()).st_ino != source.inode:
                return None
            # An editor may have changed a line in its place; what is too big for this is only appended to.
            if source.next <= COMPARED_BYTES:
                known = pread(opened.fileno(), source.next, source.base)
                if zlib.crc32(known) != source.chain:
                    return None
            elif pread(opened.fileno(), 1, begin - 1) != b"\n":
                return None
            for block in blocks(opened.fileno(), begin, file.seen[1]):
                for raw in block.split(b"\n"):
                    if b"\r" in raw or sound(raw) is None:
                        return None
                    lines.append(raw)
        whole = begin + sum(len(raw) + 1 for raw in lines)
        return lines if whole == file.seen[1] else None

    def _take_lines(self, file: ScopeFile, before: Source, lines: Iterable[bytes]) -> None:
        batch: list[bytes] = []
        for raw in lines:
            batch.append(raw)
            if len(batch) == self._batch_lines:
                before = self._add(file, before, batch)
                batch = []
                self._pause()
        inode, size, mtime = file.seen
        self._add(file, before, batch, after=replace(before, inode=inode, size=size, mtime=mtime))

    def _add(
        self, file: ScopeFile, before: Source, lines: Sequence[bytes], *, after: Source | None = None
    ) -> Source:
        pieces: list[Piece] = []
        # A deletion or an edit names a message, whose lines may be anywhere before it.
        deleted = self._deleted(file) if any(b'"edits"' in raw for raw in lines) else set()
        gone_back = [(seq, seq) for seq in sorted(deleted)]
        index, at, chain = before.lines, before.next, before.chain
        for raw in lines:
            if (back := withdrawn(raw, index)) is not None:
                gone_back.append(back)
                pieces = [piece for piece in pieces if not back[0] <= piece.seq <= back[1]]
            elif index + 1 not in deleted and (piece := of_line(raw, index, at)) is not None:
                pieces.append(piece)
            chain = zlib.crc32(b"\n", zlib.crc32(raw, chain))
            index, at = index + 1, at + len(raw) + 1
        done = replace(
            after or before,
            path=file.path,
            lines=index,
            next=at,
            chain=chain,
            rows=before.rows + len(pieces),
        )
        path, inode = file.path, file.seen[0]
        if not self._index.add(before, done, pieces, withdrawn=gone_back, still=lambda: stands(path, inode)):
            raise Overtaken
        self._added += len(pieces)
        return done

    def _deleted(self, file: ScopeFile) -> set[int]:
        """Return the ``seq`` of what deletions and edits took back, in the whole of a session."""
        read = load(Path(file.path), file.stem)
        if read is None:
            raise Overtaken
        return taken_back([decode(raw) for raw in walk(read[0].messages, 0)])

    def _take_notes(self, file: ScopeFile, source: Source | None) -> None:
        """Compare what a file of notes holds with what is known of it, and take in the difference."""
        read = read_file(Path(file.path))
        if read is None:
            raise Overtaken
        source = source or self._begin(file)
        there = {piece.digest: piece for piece in of_notes(read[0], file.kind)}
        known = {place.digest: place for place in self._index.places_of(source)}
        new = [piece for number, piece in there.items() if number not in known]
        gone = [place.row for number, place in known.items() if number not in there]
        moved = [
            place._replace(seq=piece.seq, at=piece.at, size=piece.size)
            for number, place in known.items()
            if (piece := there.get(number)) is not None and (piece.seq, piece.at) != (place.seq, place.at)
        ]
        inode, size, mtime = read[1]
        after = replace(
            source,
            path=file.path,
            inode=inode,
            size=size,
            mtime=mtime,
            lines=source.lines + 1,
            rows=source.rows + len(new),
        )
        if not self._index.add(source, after, new, gone=gone):
            raise Overtaken
        if moved:
            self._index.move(moved)
        if gone:
            self._begin_anew_if_worn()

    def _begin_anew_if_worn(self) -> None:
        ghosts, others = self._index.ghosts()
        if ghosts > max(MANY_GHOSTS, others):
            self._index.discard()
            raise Overtaken

    def _pause(self) -> None:
        now = durable.monotonic()
        self._rest(now - self._began)
        self._began = durable.monotonic()
        if self._until is not None and durable.monotonic() > self._until:
            raise OutOfTime


def _unread(file: ScopeFile, source: Source | None) -> int:
    """Return about how many bytes have to be read; of notes that are known few are new."""
    if source is None:
        return file.seen[1]
    if file.kind != "message":
        return 0
    return file.seen[1] - source.size if _only_grew(file, source) else file.seen[1]


def _only_grew(file: ScopeFile, source: Source) -> bool:
    return (
        source.path == file.path
        and source.inode == file.seen[0]
        and source.next > 0
        and file.seen[1] > source.size
    )


def _continues(transcript: Transcript, source: Source) -> bool:
    if len(transcript.messages) < source.lines:
        return False
    chain = 0
    for number, raw in enumerate(walk(transcript.messages, 0)):
        if number == source.lines:
            break
        chain = zlib.crc32(b"\n", zlib.crc32(raw, chain))
    return chain == source.chain


# What the process says as it ends: that the index holds everything, or that its time was over.
WHOLE, LEFT = 0, 3
POLL_S = 0.05
Outcome = Literal["whole", "left", "broken"]


def bring_up(
    index: Path, files: ScopeFiles, ending: threading.Event, *, within_s: float | None = None
) -> Outcome:
    """Let a process read what is new, and wait for it.

    It ends with this one, however that ends: it holds a pipe which the system closes. A kill of either costs
    the transaction that was under way, nothing else.

    Setting ``ending`` ends it; it reads for ``within_s`` at most.

    Returns whether the index is whole, or more is left to read; ``broken`` where the process could not be
    started, was killed or failed.
    """
    try:
        child = spawn([sys.executable, "-I", "-m", "session.recall.update"], stdout=NOTHING)
    except OSError as error:
        log.warning("recall.child_not_started", error=str(error))
        return "broken"
    assert child.stdin is not None
    with child.stdin:
        with suppress(BrokenPipeError):
            child.stdin.write(pickle.dumps((index, files, within_s)))
        while (code := child.poll()) is None:
            if ending.wait(POLL_S):
                child.kill()
                child.wait()
    if code not in (WHOLE, LEFT) and not ending.is_set():
        log.warning("recall.child_broke", file=index.name, code=code)
    if code == WHOLE:
        return "whole"
    return "left" if code == LEFT else "broken"


# Turns come first where the machine has too little for both.
NICE: Final = 5
# Between two transactions it rests for a part of the time that it worked: the disk is not its own, either.
RESTS: Final = 0.25


def main() -> None:
    """Bring the index up, and say by the exit code how far it came."""
    os.nice(NICE)
    try:
        path, files, within_s = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the gateway itself
    except EOFError:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    index = WordIndex(path)
    update = Update(
        index,
        files,
        rest=lambda took_s: durable.pause(RESTS * took_s),
        until=None if within_s is None else durable.monotonic() + within_s,
        batch_lines=BULK_LINES,
    )
    whole = update.run()
    index.close()
    # The thread that listens cannot be ended otherwise.
    os._exit(WHOLE if whole else LEFT)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    # What is not written yet is rolled back, as after a kill.
    os._exit(LEFT)


if __name__ == "__main__":
    main()
