"""The gateway, dying by SIGKILL at a named point: ``python -m tests.support.killable append.before:3 run …``.

A point is ``<name>.before`` or ``<name>.after``, with the number of the call at which it dies. Nothing in the
product knows of these points: they are wrapped around its functions here, in a process made for it.

``ack.before:1!<port>`` does not die: it connects to that port of the test and waits until the test closes the
connection, so that a test can do harm of its own (cut the broker off) at that very point.

=============  =========================================================================================
append         the write of lines to a transcript
fdatasync      the system call itself, whatever file
rename         a rename of what messages change
checkpoint     the rename that puts a transcript in its place: line 1 renewed, a session archived or begun
history        the rename of HISTORY.md
notes          the rename of MEMORY.md
jobs           the rename of cron/jobs.json
state_file     the rename of a state file of messages: what memory was answered, jobs, budget
ask            a request to the model
tool           the run of a tool
settle         reply put and inbound letter gone (one transaction when embedded)
publish        a confirmed publish to RabbitMQ
ack            the acknowledgement to RabbitMQ
journal        an outcome written to a journal
memory         the write of MEMORY.md or HISTORY.md
asked          an approval written to disk; ``decided``, ``begun`` and ``ended`` its later states
prompt         the question that goes to the chat; ``resolved`` what takes its place
clear          the removal of all that is kept of one key, under its lock
erase          what an erasure removes behind that
=============  =========================================================================================
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

POINTS: dict[str, list[str]] = {
    "append": ["session.store.store:Session.append"],
    "ask": ["session.models.llm:LiteLLM.ask", "session.models.model:Echo.ask"],
    "tool": ["session.tools:Toolbox.run"],
    "settle": [
        "gateway.queue.embedded.mailbox:EmbeddedMailbox.settle",
        "gateway.queue.rabbitmq.mailbox:RabbitMailbox.settle",
    ],
    "journal": ["session.transcript.journal:Journal.conclude"],
    "choose": ["session.transcript.journal:Journal.choose"],
    "fdatasync": ["os:fdatasync"],
    "rename": ["os:rename", "os:replace"],
    "publish": ["gateway.queue.rabbitmq.publish:Outbox.send"],
    "ack": ["gateway.queue.rabbitmq.stream:RabbitLetter.ack"],
    "checkpoint": ["os:rename?.jsonl"],
    "history": ["os:rename?HISTORY.md"],
    "notes": ["os:rename?MEMORY.md"],
    "jobs": ["os:rename?jobs.json"],
    "state_file": ["os:rename?.json"],
    "asked": ["session.approvals.files:ApprovalFiles.ask"],
    "decided": ["session.approvals.files:ApprovalFiles.decide"],
    "begun": ["session.approvals.files:ApprovalFiles.begin"],
    "ended": ["session.approvals.files:ApprovalFiles.end"],
    "prompt": ["gateway.turns.approvals:Approvals._ask"],
    "resolved": ["gateway.turns.approvals:Approvals.told"],
    "clear": ["session.store.store:Store.clear"],
    "erase": ["session.kept.erasing:remove_late"],
    "memory": ["session.memory.notes:Notes.write_memory", "session.memory.notes:Notes.add_history"],
}
# Written at every start: no point of what a message goes through.
OF_THE_PROCESS = ("daemon.json", "retention.json", "workspace.json")


class Countdown:
    """Dies at the given call of the given side of a point."""

    def __init__(self, side: str, number: int, port: int = 0) -> None:
        self._side = side
        self._left = number
        self._port = port

    def pass_by(self, side: str) -> None:
        """Count one passage; the last one is the end of this process."""
        if side == self._side:
            self._left -= 1
            if self._left == 0 and self._port:
                with socket.create_connection(("127.0.0.1", self._port)) as test:
                    test.recv(1)
            elif self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def wrap(target: str, countdown: Countdown) -> None:
    """Put the countdown around one function of a module or method of a class."""
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
    """Wrap the point that the first argument names, then be the gateway."""
    point, *rest = sys.argv[1:]
    passage, _, count = point.partition(":")
    name, _, side = passage.partition(".")
    number, _, port = count.partition("!")
    countdown = Countdown(side, int(number or 1), int(port or 0))
    for target in POINTS[name]:
        wrap(target, countdown)
    sys.argv = ["chat-gateway", *rest]
    from gateway.__main__ import main as gateway_main

    return gateway_main()


if __name__ == "__main__":
    sys.exit(main())
