"""One step from a form of the workspace to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Migration:
    """What a start does to a workspace of the form before.

    Args:
        to: the form that it makes; the steps of a program are without a gap.
        what: what it changes, for people.
        run: changes the files of the workspace that it is given. It may be called again after a kill at any
            point of it, and then ends as it would have; what it wrote is durable when it returns.
        rewrites: patterns of ``Path.glob`` below the workspace: all files that it changes, makes or removes,
            small ones, which are copied before.
        alone: whether programs of the form before would read or write wrongly beside it.
        unknown: patterns of files that the form before does not know, each with what becomes of them there.
    """

    to: int
    what: str
    run: Callable[[Path], None]
    rewrites: Sequence[str]
    alone: bool = True
    unknown: Sequence[tuple[str, str]] = ()

    def files(self, workspace: Path) -> list[str]:
        """List what it may rewrite, as it is now: names below the workspace, sorted."""
        found = {path for pattern in self.rewrites for path in workspace.glob(pattern) if path.is_file()}
        return sorted(path.relative_to(workspace).as_posix() for path in found)
