"""What a new owner does to the files of a key: what a dead one left is synced, a living one is cut off."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from durable import make_folder, sync_file, sync_folder
from session.disk.layout import Layout, copy_rest
from session.errors import StoreError


def settle_files(layout: Layout, stem: str) -> None:
    """Sync transcript and journal with their names, as their last writer left them; none there is fine.

    What a new owner reads is believed from then on: a reply that is told by it must not be made anew after
    a power cut.

    Raises:
        StoreError: the disk refused.
    """
    try:
        for path in (layout.transcript(stem), layout.journal(stem)):
            if path.parent.is_dir():
                sync_file(path)
                sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"a conversation could not be synced: {error.strerror}") from error


def renew_files(layout: Layout, stem: str, replacing: Callable[[Path], AbstractContextManager[int]]) -> None:
    """Copy transcript and journal over themselves, so that an overtaken writer goes on in orphans.

    Raises:
        Fenced: we were overtaken in turn.
        StoreError: the disk refused; the next claim tries again.
    """
    # Another machine may have made it: whoever makes it too knows of that.
    make_folder(layout.sessions)
    for path in (layout.transcript(stem), layout.journal(stem)):
        source = -1
        try:
            # The new file comes first: what a client knows of a folder's names is old from then on.
            with replacing(path) as fd:
                source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                copy_rest(source, fd, 0)
        except OSError as error:
            # There was none, where it was not even opened.
            if source >= 0 or not isinstance(error, FileNotFoundError):
                raise StoreError(f"{path.name} could not be renewed: {error.strerror}") from error
        finally:
            if source >= 0:
                os.close(source)
