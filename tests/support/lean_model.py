"""A model server for benchmarks: as OpenAI's, and as little work as a server in Python can be.

No real model computes on the cores of its gateway, so that what this one takes of them is no part of what is
measured: it answers every question with the same bytes, made beforehand, whole or as a stream of four pieces,
and reads of a request only where it ends and which of the two it wants. What forces a tool is answered as
``model_server`` does, by the functions that it uses; everything else that a test may want is there.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from tests.support.model_replies import Reply, Seen, arguments_for, completion, deltas, forced_tool
from tests.support.server_process import server_process

TEXT = "An answer of ordinary length, as a model writes it to a person who asked for nothing special."
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAMED = re.compile(rb'"stream": *true')
_FORCED = re.compile(rb'"tool_choice": *\{|"save_memory"')
_JSON, _EVENTS = b"application/json", b"text/event-stream"


def _answer(content_type: bytes, body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, content_type, len(body)) + body


def _stream(seen: Seen, reply: Reply) -> bytes:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "stub"}
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas(seen, reply)
    ]
    choices.append(
        {"index": 0, "delta": {}, "finish_reason": completion(seen, reply)["choices"][0]["finish_reason"]}
    )
    events = [{**base, "choices": [choice]} for choice in choices]
    events.append({**base, "choices": [], "usage": completion(seen, reply)["usage"]})
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


_ASKED = Seen(1, 0.0, {"model": "stub", "messages": [{"role": "user", "content": "x" * 400}]}, {})
WHOLE = _answer(_JSON, json.dumps(completion(_ASKED, Reply(text=TEXT))).encode())
STREAM = _answer(_EVENTS, _stream(_ASKED, Reply(text=TEXT)))
NOWHERE = _answer(_JSON, b'{"error": {"message": "no route", "type": "not_found"}}', b"404 Not Found")


class Connection(asyncio.Protocol):
    """One client: requests with a length, answered one after the other."""

    def __init__(self) -> None:
        self._came = b""
        # uvloop's are no subclass of asyncio's.
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep where answers go."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        self._came += data
        while (begin := self._came.find(b"\r\n\r\n") + 4) > 3:
            head = self._came[:begin]
            length = _LENGTH.search(head)
            end = begin + (int(length[1]) if length else 0)
            if len(self._came) < end:
                return
            body, self._came = self._came[begin:end], self._came[end:]
            self._transport.write(_answer_to(head, body))


def _answer_to(head: bytes, body: bytes) -> bytes:
    if b"/chat/completions" not in head[: head.index(b"\r\n")]:
        return NOWHERE
    streamed = _STREAMED.search(body) is not None
    if _FORCED.search(body):
        asked = json.loads(body)
        name = forced_tool(asked)
        if name:
            seen = Seen(1, 0.0, asked, {})
            reply = Reply(tool_calls=[(name, json.dumps(arguments_for(asked, name)))])
            if streamed:
                return _answer(_EVENTS, _stream(seen, reply))
            return _answer(_JSON, json.dumps(completion(seen, reply)).encode())
    return STREAM if streamed else WHOLE


def lean_model_process() -> AbstractAsyncContextManager[tuple[str, asyncio.subprocess.Process]]:
    """Run the server in a process of its own; yields its url and the process, which is killed at the end."""
    return server_process("tests.support.lean_model")


async def _main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    with suppress(KeyboardInterrupt):
        uvloop.run(_main())
