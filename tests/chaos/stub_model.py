"""A language model that answers at once and remembers who asked: OpenAI's protocol, in the kit's own loop.

The address that a daemon is given names its life, so that each request tells which process made it. An answer
repeats the message and ends with ``(#<number of the request>)``. Markers in a message:
``[[tool:ls {"path": "."}]]`` calls that tool first, ``[[delay:0.5]]`` answers so many seconds later,
``[[long:60]]`` answers with so many paragraphs more, ``[[refuse]]`` refuses for good. What the background
asks for (notes, summaries, names) is answered, too.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.records import NAME, Call
from tests.support.model_wire import head, read_request, send, send_event, send_piece

_BLOCK = re.compile(r"\A<gateway-context>.*?</gateway-context>\s*", re.DOTALL)
_TURN = re.compile(r"[a-z]+-\d{5} ")
_MARKER = re.compile(r"\[\[(\w+)(?::(.*?))?\]\]", re.DOTALL)
_REFUSED = {
    "message": "Your request was rejected as a result of our safety system.",
    "type": "invalid_request_error",
    "code": "content_policy_violation",
}


class StubModel:
    """``async with StubModel() as model`` serves on a free port; ``calls`` is what turns have asked for.

    ``asides`` are the messages that each request of the background told of.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.asides: list[frozenset[str]] = []
        # Says of a connection which process of that life made it, by the port at its other end.
        self.who: Callable[[str, int], str] = lambda life, port: life
        self._number = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> StubModel:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    def address(self, life: str) -> str:
        """Return the address for one life of a daemon."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{life}/v1"

    def taken(self) -> list[Call]:
        """Return the calls up to now, and begin new lists; the numbers go on."""
        calls, self.calls, self.asides = self.calls, [], []
        return calls

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            who = ""
            while first := await reader.read(1):
                _, path, _, body = await read_request(first, reader)
                who = who or self.who(path.split("/")[1], writer.get_extra_info("peername")[1])
                await self._serve(who, json.loads(body or b"{}"), reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # Its client died, or the batch ends.
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(
        self, life: str, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._number += 1
        number, messages = self._number, body.get("messages", [])
        text = _newest(messages)
        named = frozenset(found[0] for found in NAME.finditer(json.dumps(messages)))
        if not _TURN.match(text):
            self.asides.append(named)
            _say(writer, body, number, *_aside(body, number))
            return
        rounds, delay_s, refused = _markers(text)
        done = sum(bool(line.get("tool_calls")) for line in _since_newest_user(messages))
        call = Call(number, life, text.split(" ", 1)[0], done, time.time(), named)
        self.calls.append(call)
        if delay_s and await _left(reader, delay_s):
            call.outcome, call.ended = "aborted", time.time()
            raise ConnectionResetError
        if refused:
            send(writer, 400, {"error": _REFUSED})
        elif done < len(rounds):
            name, _, arguments = rounds[done].partition(" ")
            _say(writer, body, number, None, (name, arguments))
        else:
            _say(writer, body, number, words_for(text, number), None)
        await writer.drain()
        call.outcome, call.ended = "refused" if refused else "answered", time.time()


async def _left(reader: asyncio.StreamReader, delay_s: float) -> bool:
    """Wait so long; say whether the client left meanwhile."""
    end = time.monotonic() + delay_s
    while (rest_s := end - time.monotonic()) > 0:
        if reader.at_eof() or reader.exception() is not None:
            return True
        await asyncio.sleep(min(rest_s, 0.05))
    return False


def _markers(text: str) -> tuple[list[str], float, bool]:
    found = [(match[1], match[2] or "") for match in _MARKER.finditer(text)]
    delay_s = sum(float(value) for name, value in found if name == "delay")
    return [value for name, value in found if name == "tool"], delay_s, ("refuse", "") in found


def words_for(text: str, number: int) -> str:
    """Return the answer to a call: the message, and where it asks for them, paragraphs that name it."""
    plain, count = _MARKER.sub("", text).strip(), re.search(r"\[\[long:(\d+)\]\]", text)
    more = [f"{plain}: {each} {'and so on ' * 9}".rstrip() for each in range(int(count[1]))] if count else []
    return "\n\n".join([f"stub: {plain}", *more, f"(#{number})"] if more else [f"stub: {plain} (#{number})"])


def _aside(body: dict[str, Any], number: int) -> tuple[str | None, tuple[str, str] | None]:
    """Answer what the background asks for: the note that it wants, or a few words."""
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if "save_memory" not in tools:
        return f"Talk {number}", None
    note = {
        "history_entry": f"[{time.strftime('%Y-%m-%d %H:%M')}] They talked.",
        "memory_update": "# Memory\n\n- They talk.\n",
    }
    return None, ("save_memory", json.dumps(note))


def _newest(messages: list[dict[str, Any]]) -> str:
    """Return the text of the newest user message, without what the gateway put at its head."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content") or ""
            if isinstance(content, list):
                content = "\n".join(block.get("text", "") for block in content)
            return _BLOCK.sub("", content, count=1)
    return ""


def _since_newest_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=0)
    return messages[newest:]


def _say(
    writer: asyncio.StreamWriter,
    body: dict[str, Any],
    number: int,
    text: str | None,
    call: tuple[str, str] | None,
) -> None:
    """Answer with a text or with one call of a tool, as a stream where one is asked for."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call_{number}_0", "type": "function", "function": function}]
    finish = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    base = {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": body.get("model", "stub")}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        send(writer, 200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        return
    base["object"] = "chat.completion.chunk"
    writer.write(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}, None))
    for each in message.get("tool_calls", ()):
        each["index"] = 0
    send_event(writer, {**base, "choices": [{"index": 0, "delta": message, "finish_reason": None}]})
    send_event(writer, {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        send_event(writer, {**base, "choices": [], "usage": usage})
    send_piece(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
