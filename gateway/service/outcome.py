"""How a message ended, as a client is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# Is told why a message cannot be handed in just now; it is tried again.
ToldAway = Callable[[str], None] | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a message: a reply, or a notice after which no answer comes.

    ``files`` names those that came with the reply by their paths on the machine, one a line.
    """

    kind: Literal["reply", "notice"]
    text: str
    files: str = ""
