"""Where the index of a scope's words lies, and how a conversation is taken out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

from session.disk.derived import DerivedFile
from session.disk.layout import Layout
from session.disk.local_files import local_state
from session.errors import StoreError

FOLDER = "recall"
FORGET_S = 2.0


def index_path(workspace: Path, scope: str) -> Path:
    """Return the index of the scope that has this name."""
    # Those of an agent lie in a folder of its own.
    within = "/".join(scope.split("/")[:2]) if scope.startswith("agents/") else ""
    head, _, tail = scope[len(within) :].lstrip("/").partition("/")
    # A stem may fill a file name to its last byte, and SQLite puts its own suffixes behind it.
    name = Path(within, head) / hashlib.sha256(tail.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return local_state(workspace / "state") / FOLDER / (f"{name}.db" if tail else Path(within, f"{head}.db"))


def forget_index(layout: Layout, stem: str) -> None:
    """Delete every index that holds words of a conversation; what others said is read again.

    Raises:
        StoreError: it could not be done.
    """
    for path in _of(layout, stem):
        file = DerivedFile(path, lambda _: None, busy_s=FORGET_S, patient=True)
        try:
            if file.run(lambda opened: _holds(opened, stem)) is not False:
                file.discard()
        except OSError as error:
            raise StoreError(
                f"{path.name} could not be removed: {error.strerror}", hint=f"check {path}"
            ) from error
        finally:
            file.close()


def discard_index(layout: Layout, scope: str) -> None:
    """Delete the index of the scope that has this name.

    Raises:
        StoreError: it could not be done.
    """
    path = index_path(layout.workspace, scope)
    if not path.exists():
        return
    try:
        DerivedFile(path, lambda _: None, busy_s=FORGET_S, patient=True).discard()
    except OSError as error:
        raise StoreError(
            f"{path.name} could not be removed: {error.strerror}", hint=f"check {path}"
        ) from error


def _of(layout: Layout, stem: str) -> Iterator[Path]:
    own = index_path(layout.workspace, f"chats/{stem}")
    top = local_state(layout.workspace / "state") / FOLDER
    for folder in (top, *top.glob("agents/*")):
        shared = (*folder.glob("*.db"), *(folder / "people").glob("*.db"))
        yield from (path for path in (folder / "chats" / own.name, *shared) if path.exists())


def _holds(file: Connection, stem: str) -> bool:
    return file.execute("SELECT 1 FROM sources WHERE stem = ? LIMIT 1", (stem,)).fetchone() is not None
