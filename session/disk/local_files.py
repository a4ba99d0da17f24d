"""Where a machine keeps its search indexes: in ``state/``, or on a disk of its own (``state.local_dir``).

A machine that keeps them elsewhere leaves a note in the workspace, ``state/local/<id>.json``. The indexes
then lie in ``<folder>/<id>/``, under the names that they have in ``state/``. The id is random: a process that
finds a folder of this name is on the machine that made it. All indexes can be rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import durable
from session.disk.layout import read_file
from session.disk.state import VERSION, write_state
from session.errors import NewerFormat, StoreError

FOLDER: Final = "local"
_FILE: Final = "vectors.db"
_TREE: Final = "recall"


@dataclass(frozen=True, slots=True)
class Home:
    """One machine's note of where it keeps its indexes.

    Args:
        id: random.
        folder: what ``state.local_dir`` said, absolute.
        workspace: the workspace as that machine named it, with its links followed.
        host: the machine's name, for people.
    """

    id: str
    folder: str
    workspace: str
    host: str = ""

    @property
    def path(self) -> Path:
        """The folder of the indexes."""
        return Path(self.folder) / self.id

    @property
    def here(self) -> bool:
        """Whether it is this machine's."""
        return self.path.is_dir()


def local_state(state: Path) -> Path:
    """Return the folder in which this machine's indexes lie; ``state`` itself where nothing else is noted.

    Raises:
        NewerFormat: a newer version noted it.
        StoreError: the notes cannot be read.
    """
    homes = [home for home in homes_of(state) if home.here]
    # A copy of a workspace has the notes of the first one, and indexes of its own.
    real = os.path.realpath(state.parent) if homes else ""
    return next((home.path for home in homes if home.workspace == real), state)


def local_path(workspace: Path, name: str) -> Path:
    """Return where the file lies that has this name below the workspace, ``state/vectors.db`` for one."""
    top, _, inner = name.partition("/")
    if top == "state" and (inner.split("/")[0] == _TREE or inner.split(".db")[0] + ".db" == _FILE):
        return local_state(workspace / top) / inner
    return workspace / name


def local_name(workspace: Path, path: Path) -> str:
    """Return the name below the workspace of a file that may lie elsewhere, as ``local_path`` takes it."""
    place = local_state(workspace / "state")
    if path.is_relative_to(place):
        return f"state/{path.relative_to(place).as_posix()}"
    return path.relative_to(workspace).as_posix()


def indexes_in(place: Path) -> Iterator[Path]:
    """List the files and folders of the indexes in a home, or in ``state/``."""
    yield from (path for path in (*sorted(place.glob(f"{_FILE}*")), place / _TREE) if path.exists())


def homes_of(state: Path) -> tuple[Home, ...]:
    """Read the notes of all machines, the oldest first.

    Raises:
        NewerFormat: a newer version wrote one.
        StoreError: one cannot be read.
    """
    paths = sorted((state / FOLDER).glob("[!.]*.json"))
    return tuple(home for path in paths if (home := _read(path)) is not None)


def overlap(workspace: Path, folder: Path) -> str:
    """Say why a workspace cannot have its files in a folder; empty where the two lie apart."""
    if folder == workspace:
        found = "is the workspace itself"
    elif folder.is_relative_to(workspace):
        found = f"is inside the workspace {workspace}"
    elif workspace.is_relative_to(folder):
        found = f"contains the workspace {workspace}"
    else:
        return ""
    return f"{folder} {found}; choose a separate folder, on a disk of this machine"


def note(state: Path, home: Home) -> None:
    """Write the note of a home, durable; every process of this machine goes by it from then on.

    Raises:
        StoreError: the disk refused.
    """
    content = asdict(home)
    del content["id"]
    write_state(note_of(state, home.id), content)


def note_of(state: Path, id_: str) -> Path:
    """Name the file of a note."""
    return state / FOLDER / f"{id_}.json"


def _read(path: Path) -> Home | None:
    found = read_file(path)
    if found is None:
        # Taken away since its name was read.
        return None
    try:
        content = durable.decode_state(found[0], VERSION, path.name, error=NewerFormat)
        texts = {name: content[name] for name in ("folder", "workspace", "host")}
        if not texts["folder"] or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("a field is not a string")
    except (durable.Damaged, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"state/{FOLDER}/{path.name} is damaged; it says where a machine keeps its indexes",
            hint=f"delete {path}; the indexes will be rebuilt",
        ) from error
    return Home(path.stem, **texts)


# As statfs(2) and the kernel's ``magic.h`` have them, and the sources of those outside of it.
MAGICS: Final = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x013111A8: "ibrix",
    0x564C: "ncp",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x20030528: "orangefs",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
}
FUSE: Final = 0x65735546
_STATFS_BYTES: Final = 512


def magic_of(path: Path) -> int:
    """Return the number of the file system on which a path lies; 0 where the system does not tell.

    Raises:
        OSError: the path cannot be reached.
    """
    # Whoever reads the configuration alone spares its 5 ms.
    import ctypes

    # Python shows all of statfs(2) but this. Its first word has the number on every 64-bit Linux.
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (AttributeError, OSError):
        return 0
    if statfs(os.fsencode(path), found):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return int(ctypes.c_long.from_buffer(found).value) & 0xFFFFFFFF
