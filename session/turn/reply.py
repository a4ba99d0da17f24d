"""How a letter ended, and who looks on until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from session.models.model import Usage
from session.transcript.attachments import Attachment

# Why a message has no reply of its own: the answer of another one serves it.
TOGETHER: Final = "together"


@dataclass(frozen=True, slots=True)
class Reply:
    """How a letter ended.

    ``kind`` is ``reply`` or ``notice``, ``reason`` that of a notice. ``silent``: nothing is sent. ``seq`` is
    its number among the key's replies, ``files`` go out with it, and ``usage`` sums up all requests of the
    turn that was run for it. ``sends_files``: a tool of its turn sent some.
    """

    text: str = ""
    kind: str = "reply"
    reason: str = ""
    silent: bool = False
    repeated: bool = False
    seq: int = 0
    files: Sequence[Attachment] = ()
    usage: Usage | None = None
    sends_files: bool = False


class Watcher(Protocol):
    """Who looks on while a turn runs; every call returns at once."""

    def reads(self) -> bool:
        """Say whether somebody reads the text while it is written."""
        ...

    def delta(self, text: str) -> None:
        """See the next piece of the answer's text."""
        ...

    def tool(self, name: str) -> None:
        """See that a tool begins to run."""
        ...
