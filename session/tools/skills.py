"""The tool ``skill_read``: the text of a skill, and the files beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from session.errors import ToolError
from session.library.library import Library, Skill
from session.models.model import ToolSpec
from session.tools import ToolPlace, parameters
from session.tools.beneath import MAX_FILE_BYTES
from session.tools.threads import off_loop
from session.transcript.attachments import open_beneath

MAX_NAMED = 100
NAMED_DEPTH = 3


class SkillRead:
    """Reads from the workspace's ``skills/``, and from nothing else."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "skill_read",
        "Read the instructions of a skill, or another file of it.",
        parameters(
            "name",
            name={"type": "string", "description": "The skill's name as listed"},
            path={"type": "string", "description": "A file of the skill; default: its instructions"},
        ),
    )

    def __init__(self, library: Library) -> None:
        self._library = library

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return the text, and the names of the files beside it."""
        return await off_loop(partial(self._read, arguments["name"], arguments.get("path", "")))

    def _read(self, name: str, path: str) -> str:
        skills = {skill.name: skill for skill in self._library.skills()}
        skill = skills.get(name)
        if skill is None:
            raise ToolError(f"there is no skill {name!r}; the skills are: {', '.join(skills) or 'none'}")
        if path not in ("", "SKILL.md"):
            return _file(skill, path)
        files = _beside(skill)
        more = f"\n\n[files of this skill, to read with path: {', '.join(files)}]" if files else ""
        return (skill.body or "(its instructions are empty)") + more


def _file(skill: Skill, path: str) -> str:
    try:
        fd = open_beneath(skill.path.parent, path)
    except (OSError, ValueError) as error:
        raise ToolError(f"{path}: there is no such file in this skill") from error
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_FILE_BYTES)
    if b"\0" in data[:8192]:
        raise ToolError(f"{path}: not a text file")
    return data.decode("utf-8", "replace")


def _beside(skill: Skill) -> list[str]:
    """Name the files of a skill, the first ``MAX_NAMED`` of them, at most ``NAMED_DEPTH`` folders deep."""
    top = skill.path.parent
    found: list[str] = []
    for folder, folders, names in os.walk(top):
        here = os.path.relpath(folder, top)
        depth = 0 if here == "." else here.count("/") + 1
        folders[:] = (
            sorted(name for name in folders if not name.startswith(".")) if depth < NAMED_DEPTH else []
        )
        for name in sorted(names):
            path = os.path.normpath(os.path.join(here, name))  # noqa: PTH118 - relative, of os.walk
            if path != "SKILL.md" and not name.startswith(".") and not (top / path).is_symlink():
                found.append(path)
                if len(found) == MAX_NAMED:
                    return found
    return found
