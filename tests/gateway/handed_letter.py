"""A delivery that a test hands over, and whose loss it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.queue.mailbox import INBOUND


@dataclass(eq=False)
class HandedLetter:
    """One delivery of a letter; the test says when it is lost."""

    id: str
    body: bytes = b""
    suspect: bool = False
    box: str = INBOUND
    lost: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
