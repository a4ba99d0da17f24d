"""The steps from form to form, oldest first: a change of a file that an older program would read wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson

import durable
from gateway.form.migration import Migration


def number_menus(workspace: Path) -> None:
    """Give the mark of the menu that a platform was shown the file with a version in which it is kept now."""
    state = workspace / "state"
    for former in sorted(state.glob("*-commands")):
        path = former.with_suffix(".json")
        if not path.exists():
            mark = former.read_bytes().decode("ascii", "replace")
            durable.replace(path, orjson.dumps({"v": 1, "menu": mark}))
        # Only once the new one is on disk: without either the menu would be shown anew, which does no harm.
        former.unlink()
    durable.sync_folder(state)


MIGRATIONS: Final = (
    Migration(
        to=1,
        what="marks of command menus get a version, the workspace a number",
        run=number_menus,
        rewrites=("state/*-commands", "state/*-commands.json"),
        # A program without numbers that still runs shows a menu once more, and nothing else.
        alone=False,
        unknown=(
            (
                "agents/**",
                "a version that knows no agents leaves them alone, and answers their chats by itself",
            ),
            ("state/tokens.json", "a version that knows no tokens opens its API by http.token alone"),
            ("memory/**/versions/**", "a version that keeps none leaves them alone"),
            ("state/subagents/**", "a version that knows no subagents leaves them alone"),
        ),
    ),
)
