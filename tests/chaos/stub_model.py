"""The model server of the tests, which remembers here which process asked what.

The address that a daemon is given names its life. An answer repeats the message and ends with
``(#<number of the request>)``; ``[[long:60]]`` in a message asks for so many paragraphs more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tests.chaos.records import NAME, Call
from tests.support.model_replies import MARKER, Reply, Seen, since_newest_user
from tests.support.model_server import ModelServer

_TURN = re.compile(r"[a-z]+-\d{5} ")


class StubModel(ModelServer):
    """``asides`` of the records: the messages that each request of the background told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told_aside: list[frozenset[str]] = []
        # Says of a connection which process of that life made it, by the port at its other end.
        self.who: Callable[[str, int], str] = lambda life, port: life
        self.chooses = self._turn
        self._calls: list[tuple[Call, Seen]] = []

    def address(self, life: str) -> str:
        return f"http://127.0.0.1:{self.port}/{life}/v1"

    @property
    def calls(self) -> list[Call]:
        for call, seen in self._calls:
            call.outcome = seen.outcome
        return [call for call, _ in self._calls]

    async def _note(self, seen: Seen, event: str) -> None:
        if event in ("arrived", "aside"):
            named = frozenset(found[0] for found in NAME.finditer(json.dumps(seen.messages)))
            if event == "aside" or not _TURN.match(seen.text):
                self.told_aside.append(named)
            else:
                life = self.who(seen.path.split("/")[1], seen.port)
                call = Call(seen.n, life, seen.text.split(" ", 1)[0], _round(seen), seen.at, named)
                self._calls.append((call, seen))
        await super()._note(seen, event)

    def _turn(self, seen: Seen) -> Reply | None:
        if not _TURN.match(seen.text):
            return None
        reply = self._markers.reply(seen)
        if not reply.tool_calls:
            reply.text = words_for(seen.text, seen.n)
        return reply


def _round(seen: Seen) -> int:
    return sum(bool(line.get("tool_calls")) for line in since_newest_user(seen.messages))


def words_for(text: str, number: int) -> str:
    """Return the answer to a call: the message, and where it asks for them, paragraphs that name it."""
    plain, count = MARKER.sub("", text).strip(), re.search(r"\[\[long:(\d+)\]\]", text)
    more = [f"{plain}: {each} {'and so on ' * 9}".rstrip() for each in range(int(count[1]))] if count else []
    return "\n\n".join([f"stub: {plain}", *more, f"(#{number})"] if more else [f"stub: {plain} (#{number})"])
