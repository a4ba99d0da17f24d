"""Remembers when each Telegram bot was first started here: what was written before is nobody's question."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from channels import state_file
from channels.errors import ChannelDown, ChannelError

_AHEAD = timedelta(seconds=1)


def first_start(path: Path, bot_id: int, now: datetime) -> datetime:
    """Return the time of this bot's first start, which is ``now`` where none is known; durable on return.

    The second is whole, as Telegram's own dates are: a message of the very second of the start is not old.
    A time that is yet to come was kept by a clock that was ahead; ``now`` takes its place.

    Raises:
        ChannelError: the file cannot be read, or a newer version wrote it.
        ChannelDown: the disk refused to keep it.
    """
    try:
        # A second process that starts for the same bot must find this time, not write its own.
        with state_file.locked(path.with_name(f"{path.name}.lock")):
            starts = _starts(path)
            begun = now.astimezone(UTC).replace(microsecond=0)
            if starts.get(str(bot_id), begun + _AHEAD) > begun:
                starts[str(bot_id)] = begun
                kept = {bot: at.isoformat() for bot, at in starts.items()}
                state_file.write(path, {"first_start": kept})
            return starts[str(bot_id)]
    except OSError as error:
        hint = f"check {path} and its disk"
        raise ChannelDown(f"{path.name} cannot be written: {error.strerror}", hint=hint) from error


def _starts(path: Path) -> dict[str, datetime]:
    content = state_file.read(path)
    try:
        return {bot: datetime.fromisoformat(at) for bot, at in content.get("first_start", {}).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ChannelError(f"{path.name} is damaged", hint=f"repair {path}, or move it away") from error
