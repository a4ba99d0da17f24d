"""Which codec reads and writes each format that the command line names."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, cast

from session.interchange import annabelle, archive, openclaw, overlay, pi, rows
from session.interchange.conversation import Codec, Source
from session.interchange.nanobot import B64_NAMES, OLD_NAMES

FORMATS: Final = MappingProxyType(
    {
        "nanobot": cast(Codec, OLD_NAMES),
        "nanobot-b64": cast(Codec, B64_NAMES),
        "annabelle": cast(Codec, annabelle),
        "overlay": cast(Codec, overlay),
        "archive": cast(Codec, archive),
        "rows": cast(Codec, rows),
    }
)
SOURCES: Final = MappingProxyType({**FORMATS, "pi": cast(Source, pi), "openclaw": cast(Source, openclaw)})
