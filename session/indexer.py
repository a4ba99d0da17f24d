"""Writes the indexes of big transcripts, one after the other, in a thread that no turn waits for."""

from __future__ import annotations

import os
import struct
import threading
from array import array
from collections.abc import Callable

import structlog

from session.disk import opened
from session.errors import StoreError
from session.fence import Busy, Fence
from session.index_file import Saved, identity_of, sample, write_index
from session.lines import Lines
from session.scribe import Scribe

log = structlog.get_logger(__name__)
STALE_BYTES = 2**21  # of lines that no index knows: more would take too long to read at the next opening


class Indexer:
    """Takes what is held of a transcript while nobody uses it, and puts it on disk as its index."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def offer(self, scribe: Scribe) -> None:
        """Write the index where it is missing or long out of date; nothing may be written meanwhile.

        Where an older one is still being written it is left for the next time.
        """
        lines = scribe.transcript.messages
        if not isinstance(lines, Lines) or lines.body_bytes - lines.saved_bytes < STALE_BYTES:
            return
        if scribe.transcript.open_end:  # its last newline is still to come
            return
        if (self._thread is not None and self._thread.is_alive()) or not scribe.current():
            return
        work = begin(scribe, lines)
        self._thread = threading.Thread(target=work, name="disk-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until what is being written is written."""
        if self._thread is not None:
            self._thread.join()


def begin(scribe: Scribe, lines: Lines) -> Callable[[], None]:
    """Copy what an index is made of, and return what writes it; not where the file is gone by then."""
    layout, stem = scribe.layout, scribe.stem
    path, transcript = layout.index(stem), str(layout.transcript(stem))
    fence = Fence(layout, stem, owner=scribe.fence.owner)
    file, body_at, starts, end = lines.snapshot()
    identity, indexed = identity_of(os.fstat(file.fd)), opened(file.fd)
    finish = scribe.transcript.index.snapshot()

    def work() -> None:
        before = lines.saved_bytes
        lines.saved_bytes = end  # where it fails too: it is tried again when as much has come again
        try:
            saved = Saved(identity, body_at, end, array("Q", starts), finish(), sample(file.fd, body_at, end))
            with fence.hold(None):  # nobody clears or ends the session between the look and the write
                if indexed.is_at(transcript):
                    write_index(path, saved)
        except Busy:
            lines.saved_bytes = before  # a turn writes at this moment: behind it is the next chance
        except (OSError, StoreError, struct.error) as error:
            log.warning("index.not_written", file=path.name, error=str(error))

    return work
