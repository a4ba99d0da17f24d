"""One server, kept up alone: started, listed, asked, and started again after whatever it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

import durable
from durable import first_of
from session.disk.layout import seen
from session.errors import StoreError
from session.mcp.listing import ListedTool, Listing, Record, RecordFile, settled, withheld
from session.mcp.process import Launch, unconfined
from session.mcp.spec import CallFailed, CallLate, ServerFailed, ServerGone, ServerSpec

if TYPE_CHECKING:
    from session.mcp.connection import Answer, Connection

    Opening = Callable[..., AbstractAsyncContextManager[Connection]]

# How long a list of tools may take.
LIST_S: Final = 30.0
# How long a call waits for a server that is just being started.
WAIT_S: Final = 10.0
# How long a server that let a call wait too long may take to show that it lives.
CHECK_S: Final = 5.0
# Lists that nobody announced: so often, and announced ones no oftener than that.
LIST_EVERY_S: Final = 300.0
LIST_PAUSE_S: Final = 2.0
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
# One that stayed up so long begins with the shortest pause again.
WELL_S: Final = 60.0

log = structlog.get_logger("mcp")


class Server:
    """Keeps one server up while ``run`` runs; calls may come from any task."""

    def __init__(
        self,
        spec: ServerSpec,
        folder: Path,
        *,
        launch: Launch = unconfined,
        clock: Callable[[], float] = durable.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Read what is known of the server; ``folder`` holds the records and the servers' own folders."""
        self.spec = spec
        self._folder = folder
        self._launch = launch
        self._clock = clock
        self._sleep = sleep
        self._file = RecordFile(folder, spec.name)
        self._seen: object = None
        self._identity = spec.identity
        self.record = Record()
        # Those that may be used, by name, also of a server that is not up right now.
        self.tools: Sequence[ListedTool] = ()
        self._connection: Connection | None = None
        self._suspect = asyncio.Event()
        self._up = asyncio.Event()
        # Set, and another put in its place, when the server ends or does not start.
        self._failed = asyncio.Event()
        # Set once it is known whether the server can be started at all.
        self.tried = asyncio.Event()
        self._since = durable.now()
        self._error = self._detail = "not started yet"
        self._hint = ""
        self._pause_s = 0.0
        self._problems: Sequence[str] = ()
        self._read()

    async def refresh(self) -> None:
        """Look whether another process approved of tools."""
        try:
            await asyncio.to_thread(self._read)
        except StoreError as error:
            log.warning("mcp.record_unread", server=self.spec.name, error=str(error))

    async def run(self) -> None:
        """Keep the server up, for ever."""
        failures = 0
        while True:
            began = self._clock()
            try:
                await self._keep()
            except ServerFailed as fault:
                self._down(fault)
                _end_if_cancelled()
            except Exception as error:
                log.exception("mcp.server_broke", server=self.spec.name)
                self._down(ServerFailed(f"it cannot be kept running ({type(error).__name__})"))
                _end_if_cancelled()
            failures = 1 if self._clock() - began > WELL_S else failures + 1
            self._pause_s = PAUSES_S[min(failures, len(PAUSES_S)) - 1]
            await self._sleep(self._pause_s)
            self._pause_s = 0.0

    async def look(self) -> tuple[Record, Sequence[str], str]:
        """Start the server, have it list its tools, end it, and keep nothing.

        Returns what would be known of it, what is wrong with its list, the protocol that it speaks.

        Raises:
            ServerFailed: it cannot be started, or lists nothing.
        """
        async with self._connected() as connection:
            listing, protocol = await self._listed(connection), connection.protocol
        spec = self.spec
        record = settled(self.record, listing, identity=self._identity, trusted=spec.trusted)
        return record, listing.problems, protocol

    def approve(self) -> None:
        """Approve of everything that the server listed last; for threads."""
        self._know(self._file.approve())

    async def call(self, tool: ListedTool, arguments: Mapping[str, Any]) -> Answer:
        """Call a tool, once.

        Raises:
            CallFailed: it came to nothing, or nobody knows its outcome.
        """
        await self._wait_until_up()
        connection = self._connection
        assert connection is not None
        if tool not in self.tools:
            raise CallFailed("its description of this tool has changed and is not approved yet")
        try:
            return await connection.call(tool, arguments, timeout_s=self.spec.timeout_s)
        except CallLate as late:
            self._suspect.set()
            raise CallLate(f"{late}; whether the call took effect is not known") from late
        except ServerGone as gone:
            raise CallFailed(f"{gone}; whether the call took effect is not known") from gone

    async def _wait_until_up(self) -> None:
        """Wait for a server that is being started, or that just ended and will be."""
        if self._connection is not None and self._connection.ended.is_set():
            # It is gone, and nobody has noticed yet: nothing is sent to it any more.
            self._up.clear()
        ends_at = self._clock() + WAIT_S
        # The end that was not noticed yet, and the start after it.
        for _ in range(2):
            # One that failed again and again is not worth the wait.
            if not self._up.is_set() and self._pause_s < WAIT_S:
                left_s = ends_at - self._clock()
                await first_of(self._up.wait(), self._failed.wait(), timeout_s=left_s)
        if not self._up.is_set():
            raise CallFailed(f"not running: {self._error}")

    def part(self) -> dict[str, Any]:
        """Say whether it is up, since when, and what is wrong with it or its tools."""
        up = self._up.is_set()
        changes = len(self.record.changes) if self.record.identity == self._identity else 0
        said = [withheld(self._problems) if up else self._detail]
        if changes:
            said.append(f"changed since they were approved: {changes} of its tools (chat-gateway mcp list)")
        part = {"up": up, "since": self._since.isoformat(), "error": "; ".join(filter(None, said))}
        return part if up or not self._hint else {**part, "hint": self._hint}

    # -- its life ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        async with self._connected() as connection:
            await self._list(connection)
            self._came_up(connection)
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.listen(), name=f"mcp {self.spec.name} news")
                await self._watch(connection)

    async def _watch(self, connection: Connection) -> None:
        """List the tools again when there is reason to, until the server is of no use any more."""
        while True:
            events = (connection.ended, connection.changed, self._suspect)
            await first_of(*(event.wait() for event in events), timeout_s=LIST_EVERY_S)
            if connection.ended.is_set():
                raise ServerGone("it is gone")
            if self._suspect.is_set():
                self._suspect.clear()
                await self._check(connection)
                continue
            connection.changed.clear()
            await self._list(connection)
            await self._sleep(LIST_PAUSE_S)

    async def _check(self, connection: Connection) -> None:
        """See whether a server lives that let a call wait too long."""
        try:
            async with asyncio.timeout(CHECK_S):
                await connection.list()
        except TimeoutError:
            raise ServerFailed("it hangs: it no longer answers") from None

    async def _list(self, connection: Connection) -> None:
        listing = await self._listed(connection)
        self._problems = listing.problems
        spec = self.spec
        try:
            record = await asyncio.to_thread(
                self._file.settle, listing, identity=self._identity, trusted=spec.trusted
            )
        except StoreError as error:
            raise ServerFailed(f"its list of tools cannot be recorded: {error}", hint=error.hint) from error
        self._know(record)
        if listing.problems or self.record.changes:
            log.warning(
                "mcp.tools_withheld",
                server=spec.name,
                problems=list(listing.problems)[:10],
                changes=[f"{kind} {name}" for kind, name, _ in self.record.changes][:10],
            )

    async def _listed(self, connection: Connection) -> Listing:
        try:
            async with asyncio.timeout(LIST_S):
                return await connection.list()
        except TimeoutError:
            raise ServerFailed(f"it did not list its tools within {LIST_S:g} s") from None

    def _came_up(self, connection: Connection) -> None:
        self._connection = connection
        self._since, self._error = durable.now(), ""
        self._suspect.clear()
        self._up.set()
        self.tried.set()
        log.info("mcp.came_up", server=self.spec.name, protocol=connection.protocol, tools=len(self.tools))

    def _down(self, fault: ServerFailed) -> None:
        was_up = self._up.is_set()
        hint = fault.hint or ("" if was_up else fault.cure)
        self._up.clear()
        self._connection = None
        if was_up or str(fault) != self._error:
            log.warning("mcp.went_down", server=self.spec.name, error=str(fault), hint=hint)
            self._since = durable.now()
        # What was in use may have written what people said.
        self._error, self._detail = str(fault), str(fault) if was_up else fault.detail
        self._hint = hint
        failed, self._failed = self._failed, asyncio.Event()
        failed.set()
        self.tried.set()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        # On the loop, though it takes half a second, once: LiteLLM imports the same packages at its first
        # request, and of two threads that import them one is handed a module by half.
        opened = _opening()
        folder = self._folder / self.spec.name
        async with opened(self.spec, folder, launch=self._launch, clock=self._clock) as connection:
            yield connection

    def _read(self) -> None:
        now = seen(self._file.path)
        if now != self._seen:
            self._know(self._file.read())
            self._seen = now

    def _know(self, record: Record) -> None:
        """Take over what is known of the server, unless it is of another one that had its name."""
        if record != self.record:
            self.record = record
            self.tools = record.usable if record.identity == self._identity else ()


def _end_if_cancelled() -> None:
    """End the task where it was told to: an error on the way out may have taken the place of that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _opening() -> Opening:
    try:
        from session.mcp.connection import opened
    except ModuleNotFoundError as error:
        raise ServerFailed(f"the package {error.name} is not installed", hint="make extras") from error
    return opened
