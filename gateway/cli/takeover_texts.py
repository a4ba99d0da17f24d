"""Takes over what a nanobot workspace tells its model: persona, profile, skills; only reads the original."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.cli import output
from gateway.cli.takeover import NanobotWorkspace, Refused, left_out, put, read_inside
from session.context.context_parts import PERSONA_FILES
from session.context.profile import PROFILE_FILE
from session.library.library import Bad, read_skill

SKILL_FILE = "SKILL.md"


class _Copies:
    """The files of one source that go into the workspace; what resists is noted and left."""

    def __init__(self, source: Path, workspace: Path) -> None:
        self.source = source
        self.workspace = workspace
        self.refused: list[Refused] = []

    def take(self, path: Path, place: str) -> bool:
        """Copy a file to ``place``, where none is; say whether it was.

        Raises:
            GatewayError: it cannot be written.
        """
        data = self.read(path)
        if data is None:
            return False
        target = self.workspace / place
        if not _is_barred(target) and put(target, data):
            return True
        if not _holds(target, data):
            self.differs(path, place)
        return False

    def read(self, path: Path) -> bytes | None:
        """Read a regular file of the source, no link followed that leaves it."""
        if (data := read_inside(self.source, path)) is None:
            self.left_out(path)
        return data

    def left_out(self, path: Path) -> None:
        """Note what is no file of the source."""
        self.refused.append(left_out(path))

    def differs(self, path: Path, place: str) -> None:
        """Note what is here already, and says something else."""
        ours = self.workspace / place
        cure = f"merge {path} into {ours} by hand, or move {ours} away and import again"
        self.refused.append((f"{place} already exists here with different text and was kept", cure))


def take_texts(place: NanobotWorkspace, workspace: Path) -> list[Refused]:
    """Copy persona, profile and skills to where the context reads them, and say so.

    Raises:
        GatewayError: a file cannot be written.
    """
    refused: list[Refused] = []
    for root in place.roots:
        copies = _Copies(root, workspace)
        _take_persona(copies)
        profile = f"memory/{PROFILE_FILE}"
        if os.path.lexists(root / PROFILE_FILE) and copies.take(root / PROFILE_FILE, profile):
            output.words(f"profile: {profile}")
        if skills := [folder.name for folder in _skills(copies) if _take_skill(copies, folder)]:
            output.words(f"skills: {', '.join(skills)}")
        refused += copies.refused
    return refused


def _take_persona(copies: _Copies) -> None:
    """Copy the file that would be read, unless another one is read here that it would put in the shade."""
    theirs = _standing(copies.source)
    if theirs is None:
        return
    path, ours = copies.source / theirs, _standing(copies.workspace)
    if ours is not None and ours != theirs:
        cure = f"merge {path} into {copies.workspace / ours} by hand"
        copies.refused.append((f"{path} is skipped: {ours} is the persona here, and is kept", cure))
    elif copies.take(path, theirs):
        output.words(f"persona: {theirs}")


def _standing(folder: Path) -> str | None:
    return next((name for name in PERSONA_FILES if os.path.lexists(folder / name)), None)


def _skills(copies: _Copies) -> Iterator[Path]:
    """Yield the folders of skills."""
    try:
        found = sorted((copies.source / "skills").iterdir())
    except FileNotFoundError:
        return
    except OSError:
        copies.left_out(copies.source / "skills")
        return
    for folder in found:
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if os.path.lexists(folder / SKILL_FILE):
            yield folder
        else:
            output.words(f"skills/{folder.name} has no {SKILL_FILE} and is skipped")


def _take_skill(copies: _Copies, folder: Path) -> bool:
    """Copy the files of a skill, its instructions last; of one that is another here, nothing."""
    instructions, place = copies.read(folder / SKILL_FILE), f"skills/{folder.name}"
    if instructions is None:
        return False
    own = copies.workspace / place / SKILL_FILE
    if _is_barred(own) or (os.path.lexists(own) and not _holds(own, instructions)):
        copies.differs(folder, place)
        return False
    beside = [copies.take(path, f"{place}/{path.relative_to(folder)}") for path in _beside(copies, folder)]
    taken = copies.take(folder / SKILL_FILE, f"{place}/{SKILL_FILE}")
    found = read_skill(own, instructions)
    if taken and isinstance(found, Bad):
        output.words(f"{place}/{SKILL_FILE} is not used: {found.problem}")
    return taken or any(beside)


def _beside(copies: _Copies, folder: Path) -> Iterator[Path]:
    """Yield the files of a skill but its instructions; links to folders are not followed."""

    def refused(error: OSError) -> None:
        copies.left_out(Path(error.filename))

    for here, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(here, name) for name in folders):
            if path.is_symlink():
                copies.left_out(path)
        for path in (Path(here, name) for name in sorted(names)):
            if not path.name.startswith(".") and path != folder / SKILL_FILE:
                yield path


def _is_barred(target: Path) -> bool:
    """Say whether something that is no folder stands on the way to a file."""
    return any(os.path.lexists(folder) and not folder.is_dir() for folder in target.parents)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.read_bytes() == data
    except OSError:
        return False
