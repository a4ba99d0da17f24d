"""The lock of a session key, for slow changes of its files in any process; appends do without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from session.disk.layout import Layout
from session.disk.state import locked


@contextmanager
def key_locked(layout: Layout, stem: str) -> Iterator[None]:
    """Keep every other slow change of the key's files out, in a thread.

    Raises:
        StoreError: another process holds it for 10 s, as only a frozen one does.
    """
    with locked(layout.lock(stem)):
        yield
