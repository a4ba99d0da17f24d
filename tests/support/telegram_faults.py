"""What goes wrong between a bot and Telegram's server: refusals in the platform's words, and faults by rule.

``server.fail(method, how=…, times=…, chat_id=…)`` adds a rule; ``times=None`` holds until ``fault.end()``.

==============  ==============================================================================
``how``         what the request gets
==============  ==============================================================================
``429``         not processed; ``retry_after`` seconds (3)
``500`` … any other three digits: not processed, that status as the platform's own JSON
``html``        not processed; a gateway's HTML page with status 502
``drop``        the connection breaks before anything is processed
``drop_after``  processed, then the connection breaks: the answer is lost
``hang``        not processed; no answer until ``fault.end()``, then processed
``garbage``     processed; status 200 and a body that is no JSON
==============  ==============================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HTML = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body></html>"
WORDS = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden: bot was blocked by the user",
    404: "Not Found",
    409: "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class Refused(Exception):
    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters


def bad_request(what: str, **parameters: int) -> Refused:
    return Refused(400, f"Bad Request: {what}", **parameters)


@dataclass
class Fault:
    """One rule; ``hits`` counts the requests that met it. ``containing``: of such a text or file."""

    method: str
    how: str
    times: int | None = 1
    chat_id: int | None = None
    retry_after: int = 3
    description: str = ""
    containing: str = ""
    hits: int = 0
    ended: bool = False
    _ends: list[Callable[[], None]] = field(default_factory=list)

    def meets(self, method: str, params: dict[str, Any]) -> bool:
        """Say whether this request is struck, and count it."""
        wanted = self.method in ("*", method) or self.method.lower() == method.lower()
        if self.ended or not wanted or (self.times is not None and self.hits >= self.times):
            return False
        if self.chat_id is not None and str(params.get("chat_id")) != str(self.chat_id):
            return False
        if self.containing not in str(params.get("text") or params.get("file_id") or ""):
            return False
        self.hits += 1
        return True

    def end(self) -> None:
        self.ended = True
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    async def until_ended(self) -> None:
        """Wait on the server's loop until ``end`` is called, from whichever thread."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        self._ends.append(lambda: loop.call_soon_threadsafe(event.set))
        if not self.ended:
            await event.wait()

    def refusal(self) -> Refused | None:
        """Return the platform's own JSON refusal where ``how`` is a status."""
        if not self.how.isdigit():
            return None
        if self.how == "429":
            words = self.description or f"Too Many Requests: retry after {self.retry_after}"
            return Refused(429, words, retry_after=self.retry_after)
        return Refused(int(self.how), self.description or WORDS.get(int(self.how), "Bad Request: refused"))
