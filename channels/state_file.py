"""Small JSON files of ``state/``: each with a version, replaced whole, one writer at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

import durable
from channels.errors import ChannelError, NewerFile

VERSION: Final = 1


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold the lock file ``path``. Used from threads and one-shot commands, never on the event loop.

    Raises:
        ChannelError: somebody else has held it for ``wait_s`` seconds, or it cannot be made.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(durable.locked(path, wait_s=wait_s))
        except durable.LockHeld as error:
            raise ChannelError(str(error), hint=error.hint) from error
        except OSError as error:
            raise ChannelError(
                f"{path.name} cannot be opened: {error.strerror}", hint=f"check {path}"
            ) from error
        yield


def read(path: Path) -> dict[str, Any]:
    """Read the object in a file; an empty one where there is no file.

    Raises:
        NewerFile: a newer version of this program wrote it.
        ChannelError: it cannot be read, or is damaged; it is left as it is.
    """
    try:
        content = durable.decode_state(path.read_bytes(), VERSION, path.name, error=NewerFile)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ChannelError(f"{path.name} cannot be read: {error.strerror}", hint=f"check {path}") from error
    except durable.Damaged as error:
        raise ChannelError(str(error), hint=f"repair {path}, or move it away") from error
    if type(content.get("v")) is not int:
        raise ChannelError(
            f"{path.name} is damaged: it has no version", hint=f"repair {path}, or move it away"
        )
    return content


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole: a kill or a power cut leaves the old one or the new one.

    Raises:
        ChannelError: the disk refused; the old file is as it was.
    """
    try:
        durable.replace(path, orjson.dumps({"v": VERSION, **content}))
    except OSError as error:
        raise ChannelError(
            f"{path.name} cannot be written: {error.strerror}",
            hint=f"free some disk space, or check {path.parent}; nothing was changed",
        ) from error
