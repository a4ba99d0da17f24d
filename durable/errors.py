"""The base of all our errors, and those of the durable package.

::

    HintedError
    ├── NewerVersion    a newer chat-gateway wrote it; it was not touched (exit 78)
    ├── EarlierVersion  a development version before 0.1.0 wrote it; it was not touched (exit 78)
    ├── Damaged         it is not what was written
    ├── LockHeld        another process holds the lock
    └── StateUnavailable  the state database took nothing of a job

What the disk refuses is an OSError: each package says in its own words what was not written.
"""

from __future__ import annotations

from collections.abc import Iterator


class HintedError(Exception):
    """Base. ``str(error)`` is for the log, ``error.hint`` for the operator."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NewerVersion(HintedError):
    """A file of ours carries a version that this program does not know; nothing was written."""


class EarlierVersion(HintedError):
    """A development version before 0.1.0 wrote a database of ours; it was not touched."""


class Damaged(HintedError):
    """A file of ours holds something else than what was written; it was left as it is."""


class LockHeld(HintedError):
    """Another process holds the lock for longer than anyone who moves does."""


class StateUnavailable(HintedError):
    """The disk refused the rows of a job, or the state database is closed; nothing of the job was done."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, outermost first and each once.

    A client that raises what it was given from what it was told can close the chain to a ring.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
