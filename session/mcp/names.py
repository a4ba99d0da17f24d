"""Under which names the tools of MCP servers are offered to a model."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from session.tools import Tool

PREFIX: Final = "mcp_"
# What every provider takes as the name of a function.
MAX_NAME_CHARS: Final = 64
_MARK_CHARS = 7
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")

# Names of a server and of one of its tools.
Pair = tuple[str, str]


class NoServers:
    """No server is configured: there is no tool, but the name that an old call bears is still a server's."""

    def tools(self) -> Sequence[Tool]:
        """List none."""
        return ()

    def get(self, name: str) -> Tool | None:
        """Find none."""
        return None

    def owns(self, name: str) -> bool:
        """Say whether a name is that of a tool of some server."""
        return name.startswith(PREFIX)


def offered_names(pairs: Iterable[Pair]) -> dict[Pair, str]:
    """Name each tool ``mcp_<server>_<tool>``, with ``_`` for what a function name may not hold.

    Of names that are too long the end is cut. Where that leaves two tools with one name, or cuts one, each of
    them ends in six digits of its own, which depend on nothing but the two names.
    """
    plain = {pair: _REFUSED.sub("_", f"{PREFIX}{pair[0]}_{pair[1]}") for pair in pairs}
    times = Counter(name[:MAX_NAME_CHARS] for name in plain.values())
    return {
        pair: name
        if len(name) <= MAX_NAME_CHARS and times[name] == 1
        else f"{name[: MAX_NAME_CHARS - _MARK_CHARS]}_{_mark(pair)}"
        for pair, name in plain.items()
    }


def _mark(pair: Pair) -> str:
    return hashlib.sha256("\0".join(pair).encode("utf-8", "replace")).hexdigest()[: _MARK_CHARS - 1]
