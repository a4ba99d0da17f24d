"""Looks at every message of a connection: what was asked for, what was not, and what a list of tools held."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

import durable
from session.mcp.errors import Flooded, ServerFailed
from session.mcp.listing import Listing, bounded, read_listing

# What nobody asked for: so many messages within so many seconds are a flood.
MAX_UNASKED: Final = 1_000
WINDOW_S: Final = 10.0
# Of what a server tells by itself the rest is of no use here, and costs time to look at.
PASSED: Final = frozenset(
    {
        "notifications/cancelled",
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
    }
)
# What is shorter stands in ordinary words, too.
MIN_SECRET_CHARS: Final = 8
HIDDEN: Final = "***"
_LIST = "tools/list"
_ANSWERS = (JSONRPCResponse, JSONRPCError)


class Watch:
    """What is known of one connection besides what its session knows.

    ``ended`` is set once the other side is gone, ``fault`` says why; ``listing`` is the newest page of tools.
    ``status`` is how HTTP answered last, 0 without any. ``secrets`` is what the server was given to know us
    by, values of headers, of its address and of its environment: it may say them back.
    """

    def __init__(
        self, *, clock: Callable[[], float] = durable.monotonic, secrets: Iterable[str] = ()
    ) -> None:
        self.ended = asyncio.Event()
        self.fault: ServerFailed | None = None
        self.listing = Listing()
        self.status = 0
        self._clock = clock
        self._asked: dict[object, str] = {}
        self._unasked = 0
        self._since = clock()
        words = {word for value in secrets for word in value.split() if len(word) >= MIN_SECRET_CHARS}
        # Of two, one of which begins the other, none may leave its rest standing.
        self._secrets = sorted(words, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Return words of the server without the secrets that it was given."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def end(self, fault: ServerFailed) -> None:
        """Note that the other side is gone; the first reason stands."""
        if self.fault is None:
            self.fault = fault
        self.ended.set()

    def sent(self, message: object) -> None:
        """Note a message that goes out."""
        if isinstance(message, JSONRPCRequest):
            self._asked[message.id] = message.method

    def takes(self, message: object) -> bool:
        """Say whether a message that came in is for the session.

        Raises:
            Flooded: too much came that nobody asked for.
        """
        if isinstance(message, _ANSWERS):
            method = self._asked.pop(message.id, None)
            if method is None:
                self.unasked()
            elif method == _LIST and isinstance(message, JSONRPCResponse):
                self._read(message.result)
            return method is not None
        self.unasked()
        return not isinstance(message, JSONRPCNotification) or message.method in PASSED

    def unasked(self) -> None:
        """Count something that nobody asked for.

        Raises:
            Flooded: it is too much.
        """
        now = self._clock()
        if now - self._since > WINDOW_S:
            self._since, self._unasked = now, 0
        self._unasked += 1
        if self._unasked > MAX_UNASKED:
            raise Flooded(f"it sent over {MAX_UNASKED} unsolicited messages within {WINDOW_S:g} s")

    def _read(self, result: dict[str, Any]) -> None:
        """Keep what is sound of a list, and show the session no more of it.

        The session refuses a whole list for one bad row, and would search every result by the patterns of
        the schemas that a server gives for them, which it may have made to last for ever.
        """
        rows = result.get("tools")
        self.listing = read_listing(rows if isinstance(rows, list) else [])
        result["tools"] = [
            {"name": tool.name, "inputSchema": _plain(tool.parameters)} for tool in self.listing.tools
        ]


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the session looks at of the arguments' schema, as each of its eras takes it."""
    rules = schema["properties"].items()
    return {"type": "object", "properties": {name: rule for name, rule in rules if isinstance(rule, dict)}}


def joined(pages: Sequence[Listing]) -> Listing:
    """Return the pages of a list as one, within the bounds of one, by the names of the tools."""
    tools = [tool for page in pages for tool in page.tools]
    times = Counter(tool.name for tool in tools)
    twice = sorted(name for name, count in times.items() if count > 1)
    problems = [problem for page in pages for problem in page.problems]
    problems += [f"{name}: listed more than once" for name in twice]
    # What is left out goes by the server's order.
    listing = bounded((tool for tool in tools if times[tool.name] == 1), problems)
    is_full = listing.is_full or any(page.is_full for page in pages)
    return Listing(sorted(listing.tools, key=lambda tool: tool.name), listing.problems, is_full)
