"""The tool ``send_file``: a file of the scope goes out with the answer of the turn, perhaps with a caption.

The tool itself sends nothing: call and result stand in the transcript, and whoever sends the answer reads
there what goes with it. So a file is as durable as its answer, and goes out as often: once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from session.errors import ToolError
from session.models.model import ToolSpec
from session.tools import ToolPlace, parameters
from session.tools.beneath import names_of, threaded
from session.transcript.attachments import open_beneath

NAME: Final = "send_file"
# The shortest that a platform takes (Telegram), which counts UTF-16 code units.
MAX_CAPTION_CHARS: Final = 1024


@dataclass(frozen=True, slots=True)
class ToSend:
    """A file that a turn sends: its path below the files folder, and what is said beside it."""

    path: str
    caption: str = ""


class SendFile:
    """Sends a file of the scope to the chat, together with the answer."""

    # Nothing is sent by it: done twice it is the same.
    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        NAME,
        "Send a file of the files folder to this chat. It goes out with your answer, which still has to be "
        "written: say in it what the file is. Only for people to have; to read it yourself use read.",
        parameters(
            "path",
            path={"type": "string", "description": "Path below the files folder, such as reports/may.pdf"},
            caption={"type": "string", "description": "Caption of the file"},
        ),
    )

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Check that the file can be sent, and say so."""
        path, caption = arguments["path"], arguments.get("caption", "")
        if len(caption.encode("utf-16-le", "surrogatepass")) // 2 > MAX_CAPTION_CHARS:
            over = f"over {MAX_CAPTION_CHARS} characters, an emoji counted as two"
            raise ToolError(f"the caption is {over}; put it in your answer")

        def look() -> tuple[str, int]:
            relative = "/".join(names_of(place.folder, path))
            fd = open_beneath(place.folder, relative)
            try:
                return relative, os.fstat(fd).st_size
            finally:
                os.close(fd)

        relative, found = await threaded(path, look)
        if not 0 < found <= self._max_bytes:
            most = f"{self._max_bytes / 2**20:g} MB is the limit" if found else "it is empty"
            raise ToolError(f"{path}: it has {found} bytes; {most}")
        return f"{relative} ({found} bytes) will be sent with your answer"


def to_send(lines: Iterable[Mapping[str, Any]], folder: Path) -> list[ToSend]:
    """List what the lines of a turn say is to be sent, in order, each file once; the last caption counts.

    ``lines`` are those of the turn, oldest first.
    """
    calls: dict[str, Mapping[str, Any]] = {}
    found: dict[str, ToSend] = {}
    for line in lines:
        for call in line.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping) and function.get("name") == NAME:
                calls[str(call.get("id"))] = function
        if line.get("role") == "tool" and line.get("name") == NAME and not line.get("is_error"):
            wanted = _read(calls.pop(str(line.get("tool_call_id")), {}), folder)
            if wanted is not None:
                found[wanted.path] = wanted
    return list(found.values())


def _read(function: Mapping[str, Any], folder: Path) -> ToSend | None:
    try:
        arguments = json.loads(str(function.get("arguments")))
        path, caption = arguments["path"], arguments.get("caption", "")
        return ToSend("/".join(names_of(folder, path)), caption if isinstance(caption, str) else "")
    # A line that somebody wrote by hand.
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError, OSError, ToolError):
        return None
