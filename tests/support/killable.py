"""The gateway, dying by SIGKILL at a named point: ``python -m tests.support.killable append.before:3 run …``.

A point is ``<name>.before`` or ``<name>.after``, with the number of the call at which it dies. Nothing in the
product knows of these points: they are wrapped around its functions, in a process made for it.

``ack.before:1!<port>`` does not die: it connects to that port of the test and waits until the test closes the
connection, so that a test can do harm of its own (cut the broker off) at that very point.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

# Those that `make chaos` draws from.
POINTS: dict[str, list[str]] = {
    # The write of lines to a transcript.
    "append": ["session.store.store:Session.append", "session.store.store:Session.append_ahead"],
    # A request to the model, and the run of a tool.
    "ask": ["session.models.llm:LiteLLM.ask", "session.models.model:Echo.ask"],
    "tool": ["session.tools:Toolbox.run"],
    # Reply put and inbound letter gone: one transaction when embedded.
    "settle": [
        "gateway.queue.embedded.mailbox:EmbeddedMailbox.settle",
        "gateway.queue.rabbitmq.broker:RabbitMailbox.settle",
    ],
    # An outcome written to a journal.
    "journal": ["session.transcript.journal:Journal.conclude"],
    # A transaction of a database; behind it come the files that it changes.
    "commit": ["durable.database:Database._run"],
    # The system calls themselves, whatever file.
    "rename": ["os:rename", "os:replace"],
    # A confirmed publish to RabbitMQ, and an acknowledgement.
    "publish": ["gateway.queue.rabbitmq.publisher:Outbox.send"],
    "ack": ["gateway.queue.rabbitmq.consumer:RabbitLetter.ack"],
    # The renames that put a transcript, HISTORY.md, MEMORY.md and a state file of messages in their places.
    "checkpoint": ["os:rename?.jsonl"],
    "history": ["os:rename?HISTORY.md"],
    "notes": ["os:rename?MEMORY.md"],
    "state_file": ["os:rename?.json"],
    # Of who runs an adapter: the offset moves, an update is taken in, a send begins, is made, is noted.
    "poll": ["channels.telegram.client:Wire.poll"],
    "accept": ["gateway.inbound.pipeline:Reception.accept"],
    "trying": ["gateway.outbound.send_log:SendLog.trying"],
    "send": ["channels.telegram.adapter:Telegram.send"],
    "sent": ["gateway.outbound.send_log:SendLog.sent"],
}
# Further ones, of tests alone.
MORE_POINTS: dict[str, list[str]] = {
    # A change of the agent, written to a journal; the write of MEMORY.md or HISTORY.md.
    "choose": ["session.transcript.journal:Journal.choose"],
    "memory": ["session.memory.notes:Notes.write_memory", "session.memory.notes:Notes.add_history"],
    "jobs": ["os:rename?jobs.json"],
    # An approval written to disk, and its later states; the question that goes to the chat, and its end.
    "asked": ["session.approvals.files:ApprovalFiles.ask"],
    "decided": ["session.approvals.files:ApprovalFiles.decide"],
    "begun": ["session.approvals.files:ApprovalFiles.begin"],
    "ended": ["session.approvals.files:ApprovalFiles.end"],
    "prompt": ["gateway.dispatch.approvals:Approvals._ask"],
    "resolved": ["gateway.dispatch.approvals:Approvals.told"],
    # The removal of all that is kept of one key, under its lock, and what an erasure removes behind that.
    "clear": ["session.store.store:Store.clear"],
    "erase": ["session.kept.erasing:remove_late"],
}
# Written at every start: no point of what a message goes through.
OF_THE_PROCESS = ("daemon.json", "retention.json")


class Countdown:
    """Dies at the given passage of the given side of a point, or waits there for the test."""

    def __init__(self, side: str, number: int, port: int = 0) -> None:
        self._side, self._left, self._port = side, number, port

    def pass_by(self, side: str) -> None:
        if side == self._side:
            self._left -= 1
            if self._left == 0:
                self.end()

    def end(self) -> None:
        if not self._port:
            os.kill(os.getpid(), signal.SIGKILL)
        with socket.create_connection(("127.0.0.1", self._port)) as test:
            test.recv(1)


def read(point: str) -> tuple[str, str, int]:
    passage, _, count = point.partition(":")
    name, _, side = passage.partition(".")
    return name, side, int(count or 1)


def wrap(target: str, countdown: Countdown) -> None:
    """Put the countdown around a function or method: ``module:path?suffix of an argument``."""
    function, _, suffix = target.partition("?")
    module_name, _, path = function.partition(":")
    holder: Any = importlib.import_module(module_name)
    *owners, name = path.split(".")
    for owner in owners:
        holder = getattr(holder, owner)
    setattr(holder, name, wrapped(getattr(holder, name), countdown, suffix))


def wrapped(inner: Callable[..., Any], countdown: Countdown, suffix: str = "") -> Callable[..., Any]:
    """Return ``inner`` with the countdown before and after it, where its last argument has the suffix."""
    if asyncio.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def later(*args: Any, **kwargs: Any) -> Any:
            countdown.pass_by("before")
            result = await inner(*args, **kwargs)
            countdown.pass_by("after")
            return result

        return later

    @functools.wraps(inner)
    def now(*args: Any, **kwargs: Any) -> Any:
        name = str(args[-1])
        counts = name.endswith(suffix) and not name.endswith(OF_THE_PROCESS)
        if counts:
            countdown.pass_by("before")
        result = inner(*args, **kwargs)
        if counts:
            countdown.pass_by("after")
        return result

    return now


def main() -> int:
    """Wrap the point that the first argument names, where it names one, then be the gateway."""
    point, *rest = sys.argv[1:]
    if point != "-":
        passage, _, port = point.partition("!")
        name, side, number = read(passage)
        countdown = Countdown(side, number, int(port or 0))
        for target in (POINTS | MORE_POINTS)[name]:
            wrap(target, countdown)
    sys.argv = ["chat-gateway", *rest]
    from gateway.__main__ import main as gateway_main

    return gateway_main()


if __name__ == "__main__":
    sys.exit(main())
