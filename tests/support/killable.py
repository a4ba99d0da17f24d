"""The gateway, dying by SIGKILL at a named point: ``python -m tests.support.killable append.before:3 run …``.

A point is ``<name>.before`` or ``<name>.after``, with the number of the call at which it dies. Nothing in the
product knows of these points: they are wrapped around its functions, in a process made for it. Most are those
of `make chaos`; these come to them.

``ack.before:1!<port>`` does not die: it connects to that port of the test and waits until the test closes the
connection, so that a test can do harm of its own (cut the broker off) at that very point.

=============  =========================================================================================
choose         a change of the agent, written to a journal
jobs           the rename of cron/jobs.json
memory         the write of MEMORY.md or HISTORY.md
asked          an approval written to disk; ``decided``, ``begun`` and ``ended`` its later states
prompt         the question that goes to the chat; ``resolved`` what takes its place
clear          the removal of all that is kept of one key, under its lock
erase          what an erasure removes behind that
=============  =========================================================================================
"""

from __future__ import annotations

import socket
import sys

from tests.chaos import points
from tests.chaos.points import wrapped

__all__ = ["POINTS", "Countdown", "wrap", "wrapped"]

POINTS: dict[str, list[str]] = {
    **points.POINTS,
    "choose": ["session.transcript.journal:Journal.choose"],
    "jobs": ["os:rename?jobs.json"],
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


class Countdown(points.Countdown):
    """Dies at the given call of the given side of a point, or waits there for the test."""

    def __init__(self, side: str, number: int, port: int = 0) -> None:
        super().__init__(side, number)
        self._port = port

    def end(self) -> None:
        if not self._port:
            super().end()
        with socket.create_connection(("127.0.0.1", self._port)) as test:
            test.recv(1)


def wrap(target: str, countdown: points.Countdown) -> None:
    """Put the countdown around one function of a module or method of a class."""
    points.install([target], countdown)


def main() -> int:
    """Wrap the point that the first argument names, then be the gateway."""
    point, *rest = sys.argv[1:]
    passage, _, port = point.partition("!")
    name, side, number = points.read(passage)
    points.install(POINTS[name], Countdown(side, number, int(port or 0)))
    sys.argv = ["chat-gateway", *rest]
    from gateway.__main__ import main as gateway_main

    return gateway_main()


if __name__ == "__main__":
    sys.exit(main())
