"""A local OpenAI-compatible model server, in a test's own loop or as a process of its own.

In process::

    async with ModelServer() as server:
        model = LiteLLM(name="openai/stub", api_base=server.url)
        server.script.append(Reply(status=503))          # the next request gets this
        ...
        assert [seen.outcome for seen in server.seen] == ["answered"]

As a process: ``python -m tests.support.model_server --port 0 --log FILE`` prints ``ready <url>`` to stdout,
and appends to FILE one JSON line when a request arrives
(``{"event":"arrived","n","at","text","messages","tools","tool_choice","stream"}``) and one when it is over
(``{"event":"answered"|"aborted"|"cut"|"refused","n","at","status"}``), each flushed at once; ``read_log``
reads it.

What a request gets, first that applies:

1. ``server.away = True``: its connection is reset (``stop()`` closes the port too, ``start()`` reopens it).
2. the next ``Reply`` of ``server.script``.
3. a forced tool (``save_memory`` or any other): a valid call of it; of all markers ``save_facts`` alone reads
   one, ``[[fact:text]]`` in a message, and notes that text. With
   ``server.refuses_forced = True`` such a request gets a 400 that says so, until it comes with "auto".
4. what a compaction asks, a text that begins with ``<conversation>``: a summary with every ``fact-0000`` of
   it, or no answer ever while ``server.holds_summaries``.
5. markers anywhere in the text of the newest user message, several may stand together:
   ``[[tool:ls {"path": "."}]]`` calls it, in the first round; a second such marker is the second round;
   ``[[tool:ls {} read {"path": "a"}]]`` parallel calls; ``[[tool:ls {oops]]`` arguments that are no JSON;
   ``[[loop]]`` a tool call in every round; ``[[status:503]]``; ``[[status:429 retry-after=2]]``;
   ``[[status:503 times=2]]`` only the first two requests with that text; ``[[delay:1.5]]`` seconds before
   the answer; ``[[slow:0.1]]`` seconds between the pieces of a stream; ``[[hang]]`` no answer ever;
   ``[[empty]]`` neither text nor call; ``[[nochoices]]``; ``[[html]]`` a page with status 200;
   ``[[garbage]]`` broken JSON; ``[[cut]]`` half an answer, then the connection breaks;
   ``[[toolong]]`` 400 context_length_exceeded; ``[[refuse]]`` 400 content policy; ``[[filter]]`` finish
   reason content_filter; ``[[length]]`` finish reason length; ``[[long:5000]]`` a text of that many
   characters; ``[[say:text]]`` exactly that text.
6. ``stub: <newest user text, without its markers>``.

``/v1/embeddings`` has a script and a list of its own, ``server.vectors`` and ``server.embedded`` (the texts
of each request): texts that share words of four letters are near to each other. ``/v1/api/generate`` answers
``ok``, as Ollama does.

A request for a session's summary or name, which the background makes when it likes, is none of all these: it
is answered with ``Summary <n>`` or ``Name <n>``, or with what ``server.aside`` says, is found in
``server.asides`` instead of ``server.seen``, and is an ``aside`` in the log.

``server.delay_s`` delays every answer. Usage counts a token for every four characters. ``server.arrived(n)``
and ``server.finished(n)`` wait until that many requests came or are over.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import IO, Any

from tests.support.embedding_replies import Vectors, body_of
from tests.support.model_replies import (
    NOTED,
    Markers,
    Reply,
    Seen,
    arguments_for,
    completion,
    deltas,
    facts_of,
    finish_of,
    forced_tool,
    summed_up,
    usage_of,
)
from tests.support.model_wire import head, read_request, send, send_event, send_piece
from tests.support.ports import KeptPort
from tests.support.server_process import server_process

__all__ = ["ModelServer", "Reply", "Seen", "Vectors", "model_process", "read_log"]

WITHIN_S = 120
HTML = "<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"


class ModelServer:
    def __init__(self, *, port: int = 0, log: Path | None = None) -> None:
        self._kept_port = KeptPort(port)
        self.port = self._kept_port.port
        self.seen: list[Seen] = []
        self.asides: list[Seen] = []
        self.aside: deque[Reply] = deque()
        # Answers before the script does, where it likes.
        self.chooses: Callable[[Seen], Reply | None] | None = None
        self.script: deque[Reply] = deque()
        self.vectors: deque[Vectors] = deque()
        self.embedded: list[list[str]] = []
        self.away = False
        self.refuses_forced = False
        self.delay_s = 0.0
        # A summary was asked for.
        self.summing = asyncio.Event()
        self.holds_summaries = False
        self.connections = 0
        self._log: IO[str] | None = log.open("a", encoding="utf-8") if log else None
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._markers = Markers()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def turns(self) -> list[Seen]:
        """The requests of turns alone; the background asks for memory and summaries when it likes."""
        background = (["save_memory"], ["save_facts"])
        return [seen for seen in self.seen if seen.tools not in background and not seen.is_summary]

    async def __aenter__(self) -> ModelServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._kept_port.close()
        if self._log:
            self._log.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=1024)

    async def stop(self) -> None:
        """Close the port and every connection; ``start`` opens the same port again."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def arrived(self, n: int, *, within_s: float = WITHIN_S) -> Seen:
        """Wait for the n-th request (from 1) and return it."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.seen) >= n)
        return self.seen[n - 1]

    async def finished(self, n: int, *, within_s: float = WITHIN_S) -> Seen:
        """Wait until the n-th request (from 1) is over and return it."""
        seen = await self.arrived(n, within_s=within_s)
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: seen.outcome != "running")
        return seen

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        first: asyncio.Task[bytes] = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                begun = await first
                if not begun or self.away:
                    return
                method, path, headers, body = await read_request(begun, reader)
                # The next request, or the client's leaving.
                first = asyncio.ensure_future(reader.read(1))
                await self._serve(method, path, headers, body, writer, first)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The client left, or the test's loop ends.
            pass
        finally:
            first.cancel()
            self._writers.discard(writer)
            if self.away:
                writer.transport.abort()
            writer.close()

    async def _serve(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
        left: asyncio.Task[bytes],
    ) -> None:
        if method == "GET" and path.endswith("/models"):
            send(writer, 200, {"object": "list", "data": [{"id": "stub", "object": "model"}]})
            await writer.drain()
            return
        if method == "GET" and path.endswith("/last"):
            streamed = (seen.body for seen in reversed(self.seen) if seen.body.get("stream"))
            send(writer, 200, next(streamed, {}))
            await writer.drain()
            return
        if method == "POST" and path.endswith("/embeddings"):
            await self._embed(json.loads(body), writer, left)
            return
        if method == "POST" and path.endswith("/api/generate"):
            said = {"model": "stub", "created_at": "2026-01-01T00:00:00Z", "response": "ok", "done": True}
            send(writer, 200, json.dumps(said).encode() + b"\n", {"content-type": "application/x-ndjson"})
            await writer.drain()
            return
        if method != "POST" or not path.endswith("/chat/completions"):
            send(writer, 404, {"error": {"message": f"no route {path}", "type": "not_found"}})
            await writer.drain()
            return
        port = writer.get_extra_info("peername")[1]
        seen = Seen(len(self.seen) + 1, time.time(), json.loads(body), headers, path=path, port=port)
        if seen.aside:
            await self._answer_aside(seen, writer)
            return
        self.seen.append(seen)
        await self._note(seen, "arrived")
        answer = asyncio.ensure_future(self._answer(seen, writer))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                seen.outcome = "aborted"
            else:
                seen.outcome = answer.result()
        except ConnectionError:
            seen.outcome = "aborted"
        finally:
            if seen.outcome == "running":
                answer.cancel()
                seen.outcome = "aborted"
            await self._note(seen, seen.outcome)
        if seen.outcome in ("cut", "aborted"):
            raise ConnectionResetError

    async def _embed(
        self, body: dict[str, Any], writer: asyncio.StreamWriter, left: asyncio.Task[bytes]
    ) -> None:
        self.embedded.append([body["input"]] if isinstance(body["input"], str) else body["input"])
        if self._log:
            self._log.write(json.dumps({"event": "embedded", "texts": self.embedded[-1]}) + "\n")
            self._log.flush()
        reply = self.vectors.popleft() if self.vectors else Vectors()
        await asyncio.sleep(reply.delay_s)
        if reply.kind == "hang":
            await asyncio.wait({left})
            raise ConnectionResetError
        if reply.status != 200:
            send(writer, reply.status, {"error": {"message": f"scripted {reply.status}", "type": "error"}})
        else:
            send(writer, 200, body_of(self.embedded[-1], reply))
        await writer.drain()

    async def _answer_aside(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.asides.append(seen)
        seen.n = len(self.asides)
        await self._note(seen, "aside")
        reply = self.aside.popleft() if self.aside else Reply(text=f"{seen.aside.capitalize()} {seen.n}")
        await self._say(seen, reply, writer)

    async def _note(self, seen: Seen, event: str) -> None:
        if self._log:
            row: dict[str, Any] = {"event": event, "n": seen.n, "at": time.time()}
            if event in ("arrived", "aside"):
                row |= {"text": seen.text, "messages": seen.messages, "tools": seen.tools}
                row |= {"tool_choice": seen.body.get("tool_choice"), "stream": bool(seen.body.get("stream"))}
            else:
                row["status"] = seen.status
            self._log.write(json.dumps(row) + "\n")
            self._log.flush()
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> str:
        return await self._say(seen, self._reply(seen), writer)

    async def _say(self, seen: Seen, reply: Reply, writer: asyncio.StreamWriter) -> str:
        if wait := reply.delay_s + self.delay_s:
            await asyncio.sleep(wait)
        if reply.held is not None:
            await reply.held.wait()
        if reply.kind == "hang":
            await asyncio.Event().wait()
        seen.status = reply.status
        if reply.status != 200:
            error = reply.error or {"message": f"scripted {reply.status}", "type": "error", "code": None}
            send(writer, reply.status, reply.refusal or {"error": error}, reply.headers)
            await writer.drain()
            return "refused"
        if reply.kind == "html":
            send(writer, 200, HTML.encode(), {"content-type": "text/html"})
        elif seen.body.get("stream") and reply.kind != "unstreamed":
            return await _stream(seen, reply, writer)
        elif reply.kind == "garbage":
            send(writer, 200, b'{"id": "x", "choices": [{"mess')
        elif reply.kind == "cut":
            data = json.dumps(completion(seen, reply)).encode()
            writer.write(head(200, {"content-type": "application/json"}, len(data)) + data[: len(data) // 2])
            await writer.drain()
            writer.transport.abort() if reply.headers.get("reset") else writer.close()
            return "cut"
        else:
            send(writer, 200, completion(seen, reply))
        await writer.drain()
        return "answered"

    def _reply(self, seen: Seen) -> Reply:
        chosen = self.chooses(seen) if self.chooses is not None else None
        if chosen is not None:
            return chosen
        if self.script:
            return self.script.popleft()
        forced = forced_tool(seen.body)
        if forced is not None and self.refuses_forced and seen.body.get("tool_choice") != "auto":
            message = "tool_choice: only 'auto' is supported"
            return Reply(status=400, error={"message": message, "type": "invalid_request_error"})
        if forced == "save_facts" and NOTED.search(seen.text):
            return Reply(tool_calls=[(forced, facts_of(seen))])
        if forced:
            return Reply(tool_calls=[(forced, json.dumps(arguments_for(seen.body, forced)))])
        if seen.is_summary:
            self.summing.set()
            return Reply(kind="hang") if self.holds_summaries else summed_up(seen)
        return self._markers.reply(seen)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a ``--log`` file; half a line at its end is not yet one."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


async def _stream(seen: Seen, reply: Reply, writer: asyncio.StreamWriter) -> str:
    base = {"id": f"chatcmpl-{seen.n}", "object": "chat.completion.chunk", "created": int(seen.at)}
    base["model"] = seen.body.get("model", "stub")
    writer.write(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}, None))
    pieces = [] if reply.kind == "nochoices" else deltas(seen, reply)
    if reply.kind in ("cut", "garbage"):
        pieces = pieces[: max(2, len(pieces) // 2)]
    for number, delta in enumerate(pieces):
        if reply.half is not None and number == len(pieces) // 2:
            await writer.drain()
            await reply.half.wait()
        send_event(writer, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if reply.slow_s:
            await writer.drain()
            await asyncio.sleep(reply.slow_s)
    if reply.kind == "garbage":
        send_piece(writer, b'data: {"id": "x", "choices": [{"del\n\n')
    if reply.kind == "cut":
        await writer.drain()
        writer.close()
        return "cut"
    if reply.kind not in ("nochoices", "unended", "done"):
        send_event(
            writer, {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_of(reply)}]}
        )
    if (seen.body.get("stream_options") or {}).get("include_usage") and reply.kind not in ("unended", "done"):
        send_event(writer, {**base, "choices": [], "usage": usage_of(seen, reply)})
    if reply.kind != "unended":
        send_piece(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return "answered"


def model_process(
    log: Path | None, *, port: int = 0
) -> AbstractAsyncContextManager[tuple[str, asyncio.subprocess.Process]]:
    """Run the server in a process of its own, as ``server_process`` does."""
    logs = [] if log is None else ["--log", str(log)]
    return server_process("tests.support.model_server", "--port", str(port), *logs)


async def _main() -> None:
    parser = argparse.ArgumentParser(description="An OpenAI-compatible model server for tests")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before every answer")
    options = parser.parse_args()
    if options.log is None:
        # Who keeps no log measures: a pass over all that was asked would be taken for a late answer.
        gc.disable()
    async with ModelServer(port=options.port, log=options.log) as server:
        server.delay_s = options.delay
        print(f"ready {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main())
