"""The approvals of a workspace: one small file each below ``state/approvals``, shared by all daemons."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import structlog

import durable
from session.approvals.record import Approval, State, is_id, read
from session.disk.layout import read_file
from session.disk.state import locked, read_state, write_state
from session.errors import ApprovalLost, StoreError

log = structlog.get_logger("approvals")

KEPT: Final = timedelta(hours=48)
# Nobody knows whether a call ran that was begun and did not end: a letter that comes late must find it.
KEPT_BEGUN: Final = timedelta(days=30)
FOLDER: Final = "approvals"
Refusal = Literal["unknown", "late", "decided", "cancelled"]


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a word: the approval as it is now, and why the word does not count; None: it does."""

    approval: Approval | None
    refusal: Refusal | None = None


class ApprovalFiles:
    """Reads and changes approvals; every method works on the disk, for threads.

    Each change is made under one lock over all processes, and is on disk when the method returns.

    Raises:
        NewerFormat: a newer version wrote the file.
        StoreError: the disk refuses; nothing was changed.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self.folder = state / FOLDER
        self._lock = state / f"{FOLDER}.lock"
        self._clock = clock

    def now(self) -> datetime:
        """Return the time by which approvals run out."""
        return self._clock()

    def find(self, id_: str) -> Approval | None:
        """Return an approval; None where there is none of this id, or its file cannot be believed."""
        return read(read_state(self._path(id_))) if is_id(id_) else None

    def all(self) -> list[Approval]:
        """List what can be read, the oldest first."""
        found = [self.find(path.stem) for path in self._paths()]
        return sorted((each for each in found if each is not None), key=lambda each: (each.asked_at, each.id))

    def waiting(self, chat: str | None = None) -> list[Approval]:
        """List what waits for a word, of one chat or of all, the oldest first."""
        now = self._clock()
        return [
            each
            for each in self.all()
            if each.open and not each.is_late(now) and chat in (None, each.call.chat)
        ]

    # -- what is asked -----------------------------------------------------------------------------

    def ask(self, approval: Approval) -> Approval:
        """Store what is asked, unless it was asked before; return what stands there.

        Raises:
            ApprovalLost: what stands there cannot be believed: nobody knows whether the call ran.
        """
        with locked(self._lock):
            known = read_file(self._path(approval.id))
            if known is not None:
                return self._believed(approval.id)
            self._prune()
            write_state(self._path(approval.id), approval.as_state())
        return approval

    def expire(self, id_: str) -> Approval:
        """Note that nobody decided in time; return what stands there."""
        return self._change(id_, "expired", only=("waiting",))

    def begin(self, id_: str) -> Approval:
        """Note that the tool begins to run: from now on nobody knows whether it did.

        Returns:
            What stood there before: ``allowed`` where it may run, ``started`` where it was begun before.
        """
        with locked(self._lock):
            known = self._believed(id_)
            if known.state == "allowed":
                write_state(self._path(id_), replace(known, state="started").as_state())
            return known

    def end(self, id_: str) -> Approval:
        """Note that the result of the call is stored."""
        return self._change(id_, "ended", only=("started",))

    def cancel(self, key: str, message_id: str) -> list[Approval]:
        """Note that the turn of a message ended without its open calls; return those that were."""
        gone = []
        for path in self._paths():
            found = self.find(path.stem)
            if found is None or (found.call.key, found.call.message_id) != (key, message_id):
                continue
            if found.state in ("waiting", "allowed"):
                gone.append(self._change(found.id, "cancelled", only=("waiting", "allowed")))
        return gone

    # -- what is decided ---------------------------------------------------------------------------

    def decide(
        self, id_: str, word: Literal["allowed", "denied"], *, chat: str, by: str, via: str
    ) -> Decided:
        """Take a person's word for the call that ``chat`` was asked about; one word counts, once.

        The same word again, by its id ``via``, counts as it did before.
        """
        with locked(self._lock):
            known = self.find(id_)
            if known is None or chat not in ("", known.call.chat):
                return Decided(None, "unknown")
            if known.state == "cancelled":
                return Decided(known, "cancelled")
            if via and known.decided_via == via:
                return Decided(known)
            if known.state == "expired" or (known.open and known.is_late(self._clock())):
                return Decided(known, "late")
            if not known.open:
                return Decided(known, "decided")
            at = self._clock()
            decided = replace(known, state=word, decided_by=by, decided_via=via, decided_at=at)
            write_state(self._path(id_), decided.as_state())
        log.info("approval.decided", key=known.call.key, approval=id_, tool=known.call.tool, word=word)
        return Decided(decided)

    # -- what is let go of -------------------------------------------------------------------------

    def forget(self, key: str) -> int:
        """Remove all that was asked for a conversation, or in its chat; return how many that were."""
        gone = [each.id for each in self.all() if key in (each.call.key, each.call.chat)]
        with locked(self._lock):
            for id_ in gone:
                self._unlink(self._path(id_))
        return len(gone)

    def prune(self) -> None:
        """Remove what ended, or ran out, 48 hours ago; what was begun and did not end, 30 days ago."""
        if self.folder.is_dir():
            with locked(self._lock):
                self._prune()

    def _prune(self) -> None:
        now = self._clock()
        for each in self.all():
            kept = KEPT_BEGUN if each.state == "started" else KEPT
            if max(each.ended_at or each.expires_at, each.decided_at or each.expires_at) < now - kept:
                self._unlink(self._path(each.id))

    def _change(self, id_: str, state: State, *, only: tuple[State, ...]) -> Approval:
        with locked(self._lock):
            known = self._believed(id_)
            if known.state not in only:
                return known
            changed = replace(known, state=state, ended_at=self._clock())
            write_state(self._path(id_), changed.as_state())
            return changed

    def _believed(self, id_: str) -> Approval:
        found = self.find(id_)
        if found is None:
            raise ApprovalLost(
                f"the approval {id_} is gone, or its file is damaged",
                hint=f"check {self.folder}; the call is not run",
            )
        return found

    def _path(self, id_: str) -> Path:
        return self.folder / f"{id_}.json"

    def _paths(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from sorted(path for path in self.folder.glob("*.json") if is_id(path.stem))

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"{path.name} could not be removed: {error.strerror}", hint=f"check {path.parent}"
            ) from error
