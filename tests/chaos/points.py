"""Points at which a victim kills itself: put around the gateway's functions, which know nothing of them.

A point is ``<name>.before`` or ``<name>.after``, with the number of the passage at which the process dies:
``append.after:3``.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

POINTS: dict[str, list[str]] = {
    # The write of lines to a transcript.
    "append": ["session.store.store:Session.append"],
    # A request to the model, and the run of a tool.
    "ask": ["session.models.llm:LiteLLM.ask", "session.models.model:Echo.ask"],
    "tool": ["session.tools:Toolbox.run"],
    # Reply put and inbound letter gone: one transaction when embedded.
    "settle": [
        "gateway.queue.embedded.mailbox:EmbeddedMailbox.settle",
        "gateway.queue.rabbitmq.mailbox:RabbitMailbox.settle",
    ],
    # An outcome written to a journal.
    "journal": ["session.transcript.journal:Journal.conclude"],
    # The system calls themselves, whatever file.
    "fdatasync": ["os:fdatasync"],
    "rename": ["os:rename", "os:replace"],
    # A confirmed publish to RabbitMQ, and an acknowledgement.
    "publish": ["gateway.queue.rabbitmq.publish:Outbox.send"],
    "ack": ["gateway.queue.rabbitmq.stream:RabbitLetter.ack"],
    # The renames that put a transcript, HISTORY.md, MEMORY.md and a state file of messages in their places.
    "checkpoint": ["os:rename?.jsonl"],
    "history": ["os:rename?HISTORY.md"],
    "notes": ["os:rename?MEMORY.md"],
    "state_file": ["os:rename?.json"],
    # Of who runs an adapter: the offset moves, an update is taken in, a send begins, is made, is noted.
    "poll": ["channels.telegram.wire:Wire.poll"],
    "accept": ["gateway.inbound.reception:Reception.accept"],
    "trying": ["gateway.outbound.ledger:DeliveryLedger.trying"],
    "send": ["channels.telegram.adapter:Telegram.send"],
    "sent": ["gateway.outbound.ledger:DeliveryLedger.sent"],
}
# Written at every start: no point of what a message goes through.
OF_THE_PROCESS = ("daemon.json", "retention.json")


class Countdown:
    """Ends this process at the given passage of the given side of a point."""

    def __init__(self, side: str, number: int) -> None:
        self._side = side
        self._left = number

    def pass_by(self, side: str) -> None:
        """Count one passage; the last one is the end."""
        if side == self._side:
            self._left -= 1
            if self._left == 0:
                self.end()

    def end(self) -> None:
        """Die as by kill -9."""
        os.kill(os.getpid(), signal.SIGKILL)


def read(point: str) -> tuple[str, str, int]:
    """Return name, side and number of ``<name>.<side>:<number>``."""
    passage, _, count = point.partition(":")
    name, _, side = passage.partition(".")
    return name, side, int(count or 1)


def install(targets: Sequence[str], countdown: Countdown) -> None:
    """Put the countdown around functions or methods, each as ``module:path?suffix of an argument``."""
    for target in targets:
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
