"""One worker: started, told, asked, heard; it ends when its gateway does, whichever way that ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from durable import StateUnavailable, StateWriter, first_of, serve
from gateway.errors import ConfigError, GatewayError
from gateway.workers.line import Line, TooLong
from session.models.usage_rows import release

MODULE: Final = "gateway.cli.worker"
# How long the kernel and its handler have to write where each thread stood.
LAST_LOOK_S: Final = 0.5
# Longer than a worker takes that is told to end at once.
ENDS_WITHIN_S: Final = 5.0


class WorkerFailed(GatewayError):
    """A worker could not start, for a reason that a further start would meet again."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class NoAnswer(GatewayError):
    """A worker did not answer, or ended meanwhile."""


class WorkerProcess:
    """One process that works on conversations, with the configuration ``values``.

    ``standing`` is what it said last of itself, ``beats`` counts its words, ``failed`` is why it could not
    start, as far as it said so, and ``how`` tells in words how it ended, where no exit code says it.
    ``changed`` is called when it became ready, or said anew how it stands.
    """

    def __init__(self, values: Mapping[str, Any], state: StateWriter, *, changed: Callable[[], None]) -> None:
        self.number = 0
        self._values = values
        self._state = state
        self._serving: asyncio.Task[None] | None = None
        self.beats = 0
        self.standing: dict[str, Any] = {}
        self.failed: GatewayError | None = None
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.how = ""
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._line: Line | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        # What it was told to do before it could hear.
        self._wish = ""

    @property
    def pid(self) -> int:
        """Its process id; 0 before it is started."""
        return self._process.pid if self._process is not None else 0

    @property
    def up(self) -> bool:
        """Whether it works."""
        return self.ready.is_set() and not self.ended.is_set()

    @property
    def alive(self) -> bool:
        """Whether its process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start its process with the configuration; it imports what it needs, and waits for ``run``.

        Raises:
            OSError: no process, no memory, no descriptor; a later try may find some.
        """
        ours, theirs = socket.socketpair()
        state_ours, state_theirs = socket.socketpair()
        try:
            with theirs, state_theirs:
                ends = (theirs.fileno(), state_theirs.fileno())
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", MODULE, *map(str, ends)),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=ends,
                    # Ctrl-C at a terminal is for the gateway, which drains its workers itself.
                    start_new_session=True,
                )
            self._line = await Line.of(ours)
            answering = serve(state_ours, self._state, _nobody)
            self._serving = asyncio.create_task(answering, name="state of a worker")
        except BaseException:
            ours.close()
            state_ours.close()
            raise
        self._line.say({"settings": dict(self._values)})

    async def run(self, number: int, partitions: Iterable[int]) -> None:
        """Have it work as this worker on these partitions, and hear it until it has ended.

        Cancelled, it is told to end at once, and killed where it takes longer than ``ENDS_WITHIN_S`` seconds.
        """
        self.number = number
        try:
            if self._line is None:
                await self.start()
            assert self._line is not None
            assert self._process is not None
            self._line.say({"number": number, "partitions": list(partitions)})
            await self._heard_out(self._line, self._process)
        except OSError as error:
            self.how = f"no process could be made: {error.strerror or error}"
        except asyncio.CancelledError:
            await self._told_to_end()
            raise
        finally:
            self.discard()
            if self._serving is not None:
                # Its process is gone or was killed: what it sent before is committed.
                await asyncio.wait([self._serving])
            if self.pid:
                with contextlib.suppress(StateUnavailable):
                    await release(self._state, self.pid)

    async def _heard_out(self, line: Line, process: asyncio.subprocess.Process) -> None:
        while (words := await line.heard()) is not None:
            self._hear(words)
        if line.broken:
            # It would be taken to stand still. It strikes the starts of its turns out, if it still hears.
            self.how = line.broken
            self.end()
            await first_of(process.wait(), timeout_s=ENDS_WITHIN_S)
            self.code = process.returncode
            return
        self.code = await process.wait()

    async def _told_to_end(self) -> None:
        """Have it strike the starts of its running turns out, and wait until it has ended."""
        # One that has said nothing yet has no letter, and hears nothing.
        if self._line is None or self._process is None or not self.beats:
            return
        self.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_WITHIN_S):
                await self._heard_out(self._line, self._process)

    def discard(self) -> None:
        """Kill it where it still runs."""
        if self.alive:
            self.kill()
        if self._line is not None:
            self._line.close()
        self.ended.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(NoAnswer(f"worker {self.number} has ended"))
        self._asked.clear()

    def _hear(self, words: dict[str, Any]) -> None:
        self.beats += 1
        if self.beats == 1 and self._wish:
            self._do(self._wish)
        if "answer" in words:
            answer = self._asked.pop(words["answer"], None)
            if answer is not None and not answer.done():
                if "fault" in words:
                    answer.set_exception(NoAnswer(f"worker {self.number}: {words['fault']}"))
                else:
                    answer.set_result(words["is"])
        elif "failed" in words:
            self.failed = _fault(self.number, words["failed"])
        elif "standing" in words:
            self.standing = words["standing"]
            self._changed()
        elif "ready" in words:
            self.ready.set()
            self._changed()

    # -- what it is told and asked -----------------------------------------------------------------

    async def ask(self, what: str, **arguments: Any) -> Any:
        """Ask it something.

        Raises:
            NoAnswer: it ended, or could not say, or it is too much to ask.
        """
        if self._line is None or self.ended.is_set():
            raise NoAnswer(f"worker {self.number} does not run")
        self._next += 1
        number = self._next
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._line.say({"ask": number, "what": what, "with": arguments})
            return await answer
        except TooLong as error:
            raise NoAnswer(f"worker {self.number}: {error}") from None
        finally:
            self._asked.pop(number, None)

    def drain(self) -> None:
        """Have it end its running turns, then itself."""
        self._do("drain")

    def end(self) -> None:
        """Have it end at once; its letters come again."""
        self._do("end")

    def _do(self, what: str) -> None:
        self._wish = what
        # Its first line is read at the start of a process, and has to be the only one by then.
        if self._line is not None and self.beats:
            self._line.say({"do": what})

    def kill(self) -> None:
        """End it whatever it does."""
        self._signal(signal.SIGKILL)

    async def kill_stuck(self) -> None:
        """End it after it has written to the log where it stands, if it still can."""
        self.how = self.how or "its loop stood still"
        self._signal(signal.SIGUSR1)
        await asyncio.sleep(LAST_LOOK_S)
        self.kill()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _nobody(key: str, cleared: bool) -> None:
    """Hear that a worker changed a conversation: it has the key to itself."""


def _fault(number: int, words: Mapping[str, Any]) -> GatewayError:
    """Return the error that ended a start, as its process told it."""
    if words.get("problems"):
        return ConfigError(list(words["problems"]), hint=words["hint"])
    return WorkerFailed(
        f"worker {number}: {words['text']}", hint=words["hint"], exit_code=int(words["exit_code"])
    )
