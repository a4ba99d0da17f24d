"""Where the files lie that are one machine's alone: SQLite's, which no network's disk bears.

Usually that is ``state/`` of the workspace. A machine that keeps them elsewhere says so in the workspace, in
a note ``state/local/<id>.json`` of its own; they then lie in ``<folder>/<id>/``, under the names that they
have in ``state/``. The id is drawn: whoever finds a folder of this name is on the machine that made it.

::

    phase       the files count      what a start does with it, if it finds it
    arriving    where they were      takes folder and copies away: the move begins anew
    clearing    in the folder        takes away what they were copied of
    (none)      in the folder
    leaving     in the folder        takes away the copies in ``state/``
    emptied     in ``state/``        takes the folder away
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import durable
from session.disk.layout import read_file
from session.disk.state import VERSION, write_state
from session.errors import NewerFormat, StoreError

FOLDER: Final = "local"
# What nobody can make anew, and what is made anew of the rest; folders hold any number of files.
KEPT: Final = ("delivery-*.db",)
DERIVED: Final = ("vectors.db", "recall/**/*.db")
# Folders of ``state/`` that hold nothing else.
TREES: Final = ("recall",)
_COUNTS: Final = ("clearing", "", "leaving")
# By the folder of the notes and its time: they change with every note that is made or taken away.
_known: dict[str, tuple[int, tuple[Home, ...]]] = {}
_KNOWN_MAX: Final = 256
# The clock of a file system moves in steps: what is noted twice within one looks unchanged.
_STEP_NS: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class Home:
    """One machine's note of where it keeps its files.

    Args:
        id: its own, drawn.
        folder: what ``state.local_dir`` said, absolute.
        workspace: the workspace as that machine named it, with its links followed.
        host: the machine's name, for people.
        phase: what of a move was begun, as the module says.
        source: while ``clearing``: the id of the home that the files left; empty for ``state/``.
        stale: while ``clearing``, the files to be taken away there, each with the SHA-256 of what was copied;
            while ``leaving``, those that are copied.
    """

    id: str
    folder: str
    workspace: str
    host: str = ""
    phase: str = ""
    source: str = ""
    stale: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The folder of the files."""
        return Path(self.folder) / self.id

    @property
    def here(self) -> bool:
        """Whether it is this machine's."""
        return self.path.is_dir()

    @property
    def counts(self) -> bool:
        """Whether its files are the ones in use."""
        return self.phase in _COUNTS


def local_state(state: Path) -> Path:
    """Return the folder in which this machine's own files lie; ``state`` itself where nothing else is noted.

    Raises:
        NewerFormat: a newer version noted it.
        StoreError: the notes cannot be read.
    """
    homes = [home for home in homes_of(state) if home.counts and home.here]
    left = {home.source for home in homes if home.phase == "clearing"}
    return next((home.path for home in homes if home.id not in left), state)


def local_path(workspace: Path, name: str) -> Path:
    """Return where the file lies that has this name below the workspace, ``state/vectors.db`` for one."""
    top, _, inner = name.partition("/")
    if top == "state" and is_local(inner):
        return local_state(workspace / top) / inner
    return workspace / name


def local_name(workspace: Path, path: Path) -> str:
    """Return the name below the workspace of a file that may lie elsewhere, as ``local_path`` takes it."""
    place = local_state(workspace / "state")
    if path.is_relative_to(place):
        return f"state/{path.relative_to(place).as_posix()}"
    return path.relative_to(workspace).as_posix()


def is_local(name: str) -> bool:
    """Say whether a file of ``state/`` is one machine's alone, or lies beside one, by its name there."""
    head, _, rest = name.partition("/")
    if rest or head in TREES:
        return head in TREES
    plain = name.split(".db-")[0] + ".db" if ".db-" in name else name
    return plain == "vectors.db" or (plain.startswith("delivery-") and plain.endswith(".db"))


def files_in(place: Path, patterns: tuple[str, ...] = (*KEPT, *DERIVED)) -> Iterator[str]:
    """Name the files of these kinds in a home, or in ``state/``, in order."""
    for pattern in patterns:
        for path in sorted(place.glob(pattern)):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(place).as_posix()


def homes_of(state: Path) -> tuple[Home, ...]:
    """Read the notes of all machines, the oldest first.

    Raises:
        NewerFormat: a newer version wrote one.
        StoreError: one cannot be read.
    """
    folder = state / FOLDER
    try:
        now_ns = os.stat(folder).st_mtime_ns  # noqa: PTH116 - often asked, and mostly there is none
    except (FileNotFoundError, NotADirectoryError):
        return ()
    name = os.fspath(folder)
    known = _known.get(name)
    if known is not None and known[0] == now_ns:
        return known[1]
    paths = sorted(folder.glob("[!.]*.json"))
    found = tuple(home for path in paths if (home := _read(path)) is not None)
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    if durable.wall_ns() - now_ns > _STEP_NS:
        _known[name] = now_ns, found
    return found


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
    _known.pop(os.fspath(state / FOLDER), None)
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
        texts = {name: content[name] for name in ("folder", "workspace", "host", "phase", "source")}
        stale = {str(name): str(digest) for name, digest in dict(content["stale"]).items()}
        if not texts["folder"] or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("a field is not a string")
    except (durable.Damaged, KeyError, TypeError, ValueError) as error:
        # Passed over, it would let a start begin an empty queue beside the one that it tells of.
        raise StoreError(
            f"state/{FOLDER}/{path.name} is damaged; it says where send logs of the workspace are",
            hint=f"look for a folder {path.stem} on each machine and correct the file, or delete {path} "
            "if there is none",
        ) from error
    return Home(path.stem, **texts, stale=stale)
