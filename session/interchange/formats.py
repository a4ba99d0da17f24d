"""Which codec reads and writes each format that the command line names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from session.interchange import annabelle, archive, nanobot, overlay, pi, rows
from session.interchange.conversation import Conversation, Files, Written


@dataclass(frozen=True, slots=True)
class Source:
    """One format that is read: ``decode`` raises BadFormat where nothing of it is a session."""

    decode: Callable[[Files], list[Conversation]]


@dataclass(frozen=True, slots=True)
class Codec(Source):
    """One format, both ways."""

    encode: Callable[[Conversation], Written]


FORMATS: Final[Mapping[str, Codec]] = MappingProxyType(
    {
        "nanobot": Codec(nanobot.decode, partial(nanobot.encode, name_of=nanobot.old_name)),
        "nanobot-b64": Codec(nanobot.decode, partial(nanobot.encode, name_of=nanobot.b64_name)),
        "annabelle": Codec(annabelle.decode, annabelle.encode),
        "overlay": Codec(overlay.decode, overlay.encode),
        "archive": Codec(archive.decode, archive.encode),
        "rows": Codec(rows.decode, rows.encode),
    }
)
SOURCES: Final[Mapping[str, Source]] = MappingProxyType(
    {**FORMATS, "pi": Source(pi.decode), "openclaw": Source(pi.decode_openclaw)}
)
