"""Brings to disk what another process wrote of a key, which may have died before it synced that."""

from __future__ import annotations

from durable import sync_file, sync_folder
from session.disk.layout import Layout
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
