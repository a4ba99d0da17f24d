"""Writes the indexes of big transcripts, one after the other, in a thread that no turn waits for."""

from __future__ import annotations

import os
import struct
import threading
from array import array
from collections.abc import Callable

import structlog

from session.disk.layout import opened
from session.errors import StoreError
from session.store.fence import Busy, Fence
from session.store.writer import TranscriptWriter
from session.transcript.index_file import Saved, identity_of, sample, write_index
from session.transcript.lines import Lines

log = structlog.get_logger(__name__)
# Bytes of lines that no index knows: more would take too long to read at the next opening.
STALE_BYTES = 2**21


class Indexer:
    """Takes what is held of a transcript while nobody uses it, and puts it on disk as its index."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def offer(self, writer: TranscriptWriter) -> None:
        """Write the index where it is missing or long out of date; nothing may be written meanwhile.

        Where an older one is still being written it is left for the next time.
        """
        lines = writer.transcript.messages
        if not isinstance(lines, Lines) or lines.body_bytes - lines.saved_bytes < STALE_BYTES:
            return
        # The last line may still grow: its newline is yet to come.
        if writer.transcript.open_end:
            return
        if (self._thread is not None and self._thread.is_alive()) or not writer.current():
            return
        work = begin(writer, lines)
        self._thread = threading.Thread(target=work, name="disk-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until what is being written is written."""
        if self._thread is not None:
            self._thread.join()


def begin(writer: TranscriptWriter, lines: Lines) -> Callable[[], None]:
    """Copy what an index is made of, and return what writes it; not where the file is gone by then."""
    layout, stem = writer.layout, writer.stem
    path, transcript = layout.index(stem), str(layout.transcript(stem))
    fence = Fence(layout, stem, owner=writer.fence.owner)
    file, body_at, starts, end = lines.snapshot()
    identity, indexed = identity_of(os.fstat(file.fd)), opened(file.fd)
    finish = writer.transcript.index.snapshot()

    def work() -> None:
        before = lines.saved_bytes
        # Set even where writing fails: it is tried again when as much has come again.
        lines.saved_bytes = end
        try:
            saved = Saved(identity, body_at, end, array("Q", starts), finish(), sample(file.fd, body_at, end))
            # Under the lock nobody clears or ends the session between the look and the write.
            with fence.hold(None):
                if indexed.is_at(transcript):
                    write_index(path, saved)
        except Busy:
            # A turn writes at this moment. The next chance is behind it.
            lines.saved_bytes = before
        except (OSError, StoreError, struct.error) as error:
            log.warning("index.not_written", file=path.name, error=str(error))

    return work
