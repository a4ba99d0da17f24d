"""Shows the conversations of this terminal, to choose one of: ``chat --list`` and ``/sessions``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.cli import output
from gateway.cli.json_lines import JsonLines
from gateway.cli.known import plain
from gateway.cli.typed import Typed
from gateway.config.settings import Settings
from session.store.store import Store
from session.transcript.key import split

if TYPE_CHECKING:
    from session.store.listing import SessionRow

SHOWN_MAX = 30
_COLUMNS = ("no", "key", "name", "last_message_at", "messages", "state")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A conversation, and the ULID of its ended session that is to go on, if one was meant."""

    key: str
    resumes: str = ""


class Picker:
    """Shows conversations and asks which is meant.

    Args:
        asks: somebody can answer; else the conversations are only shown.
        lines: where they are written for a program instead.
    """

    def __init__(self, settings: Settings, *, asks: bool, lines: JsonLines | None = None) -> None:
        self.settings = settings
        self._asks = asks
        self._lines = lines

    async def show(self) -> Sequence[SessionRow]:
        """Write this terminal's conversations, newest first, and return them."""
        async with aclosing(Store(self.settings.workspace, zone=self.settings.zone)) as store:
            rows = [row for row in await store.rows() if split(row.key)[0] == "cli"]
        rows = rows[:SHOWN_MAX]
        if self._lines is not None:
            self._lines.rows([row.as_dict() for row in rows])
        elif rows:
            output.rows([_shown(number, row) for number, row in enumerate(rows, 1)], _COLUMNS)
        else:
            output.words("no chats yet")
        return rows

    async def choose(self, typed: Typed, wanted: str = "") -> Chosen | None:
        """Return what ``wanted`` means, a key or a number; without it show all and ask."""
        if ":" in wanted:
            return Chosen(wanted)
        rows = await self.show()
        if not wanted:
            if not rows or not self._asks:
                return None
            output.words(
                f"Which one? 1 to {len(rows)}, or a key such as cli:garden for a new chat; Enter cancels"
            )
            wanted = (await typed.read() or "").strip()
        if not wanted:
            return None
        if ":" in wanted:
            return Chosen(wanted)
        if wanted.isascii() and wanted.isdigit() and 0 < int(wanted[:9]) <= len(rows):
            row = rows[int(wanted[:9]) - 1]
            return Chosen(row.key, "" if row.active else row.id)
        output.error(
            f"{plain(wanted)!r} is not in the list", "enter a number from the list, or channel:chat_id"
        )
        return None

    def entered(self, key: str) -> None:
        """Say which conversation goes on."""
        if self._lines is not None:
            self._lines.key = key
        else:
            output.words(f"now in {key}")


def _shown(number: int, row: SessionRow) -> dict[str, Any]:
    fields = {"key": row.key, "name": row.name, "last_message_at": row.last_message_at[:16]}
    return {"no": number, **fields, "messages": row.message_count, "state": "" if row.active else "ended"}
