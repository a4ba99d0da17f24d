"""How fast one token may send, over all processes that share the state folder and over their restarts.

The file holds when something was sent, never a promise: whoever waits keeps a claim in memory, so that a
process that dies while it waits leaves no hole, and looks again when its instant has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

import durable
from channels import state_file
from channels.errors import NewerFile
from channels.platform_time import steady_s

log = structlog.get_logger(__name__)
# The name under which what holds for every chat is kept.
_ALL: Final = ""
_BUSY_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` sends in any ``per_s`` seconds."""

    count: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What a platform lets one token do: over all chats, in one chat, in one group."""

    overall: Rate
    chat: Rate
    group: Rate | None = None


_KNOWN: Final = {
    "telegram": Rates(overall=Rate(30, 1.0), chat=Rate(3, 3.0), group=Rate(20, 60.0)),
    "discord": Rates(overall=Rate(50, 1.0), chat=Rate(5, 5.0)),
}
_OTHER: Final = Rates(overall=Rate(20, 1.0), chat=Rate(5, 5.0))


def rates_of(name: str) -> Rates:
    """Return the rates of a platform; careful ones where they are not known."""
    return _KNOWN.get(name, _OTHER)


@dataclass(slots=True)
class _Sent:
    """What was sent and who is paused, by chat: seconds of this machine's clock since it was started."""

    at: dict[str, list[float]] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def forget(self, now: float, *, older_s: float) -> None:
        self.at = {
            chat: kept
            for chat, times in self.at.items()
            if (kept := [min(each, now) for each in times if each > now - older_s])
        }
        self.until = {chat: each for chat, each in self.until.items() if each > now}

    def add(self, more: _Sent) -> None:
        for chat, times in more.at.items():
            both = Counter(self.at.get(chat, ())) | Counter(times)
            self.at[chat] = sorted(both.elements())
        for chat, until in more.until.items():
            self.until[chat] = max(self.until.get(chat, 0.0), until)


@dataclass(slots=True)
class _Claim:
    """When one send may go: by the rates of its chat, and by the one over all."""

    chat: float | None = None
    all: float | None = None
    given_up: bool = False


class Limiter:
    """One limiter per token, whatever number of processes and of these objects.

    Args:
        state: the folder of our own files.
        name: the channel, for the log.
        token: it never leaves this call; the file is named by a hash of it.
        clock: seconds since the machine was started; no change of the wall clock moves it.
        frozen_s: who holds the file's lock for so long does not move (it is held for less than a
            millisecond); until it does, this object goes by what it knows itself.

    Raises:
        NewerFile: a newer version of this program wrote the file.
    """

    def __init__(
        self,
        state: Path,
        name: str,
        token: str,
        rates: Rates,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        frozen_s: float = 5.0,
    ) -> None:
        self._name = name
        self._rates = rates
        self._clock = clock or steady_s
        self._sleep = sleep
        self._frozen_s, self._frozen = frozen_s, False
        every = (rates.overall, rates.chat, *([rates.group] if rates.group else []))
        self._window_s = max(each.per_s for each in every)
        self._file = _File(state / f"limits-{hashlib.sha256(token.encode()).hexdigest()[:12]}.json")
        self._file.check()
        # Sends that the file could not be told of.
        self._memory = _Sent()
        self._queues: dict[str, list[float]] = {}
        # First come, first served: one thread at a time looks at the file.
        self._serving = asyncio.Lock()
        # A thread outlives the cancelled task that began it.
        self._mutex = threading.Lock()

    async def wait(self, chat_id: str, *, group: bool) -> None:
        """Return when one send to a chat may go; a topic (``-100:topic:5``) counts with its chat."""
        chat = chat_id.partition(":")[0]
        claim = _Claim()
        rates = [self._rates.chat]
        if group and self._rates.group is not None:
            rates.append(self._rates.group)
        try:
            while (after_s := await self._with_file(partial(self._step, chat, rates, claim))) > 0:
                await self._sleep(after_s)
        finally:
            # A look that was cancelled may still be under way in its thread.
            with self._mutex:
                claim.given_up = True
                self._leave(chat, claim)

    async def pause(self, chat_id: str | None, after_s: float) -> None:
        """Send nothing to this chat (None: to any) for ``after_s`` seconds, as the platform asked."""
        chat = _ALL if chat_id is None else chat_id.partition(":")[0]
        await self._with_file(partial(self._pause, chat, after_s))

    async def _with_file(self, work: Callable[[_Sent], tuple[float, bool]]) -> float:
        async with self._serving:
            since = durable.monotonic()
            while (result := await asyncio.to_thread(self._look, work)) is None:
                await asyncio.sleep(_BUSY_S)
                if durable.monotonic() - since > self._frozen_s:
                    self._frozen = True
                    log.warning("limits.frozen", channel=self._name)
            return result

    def _look(self, work: Callable[[_Sent], tuple[float, bool]]) -> float | None:
        """Work on what all processes know; None where another one holds the lock just now."""
        with self._mutex, contextlib.ExitStack() as stack:
            sent = self._memory
            file: _File | None = None
            try:
                if stack.enter_context(self._file.locked()):
                    self._frozen = False
                    sent, file = self._file.read(self._clock()), self._file
                    sent.add(self._memory)
                elif not self._frozen:
                    return None
            except (OSError, NewerFile):
                # On a full disk, or beside a newer version, this process goes by what it knows itself.
                file = None
            sent.forget(self._clock(), older_s=self._window_s)
            result, changed = work(sent)
            if changed or self._file.translated:
                self._keep(sent, file)
            return result

    def _keep(self, sent: _Sent, file: _File | None) -> None:
        """Tell all processes; where the disk refuses, at least this one remembers."""
        self._memory = sent
        if file is not None:
            with contextlib.suppress(OSError):
                file.write(sent, self._clock())
                self._memory = _Sent()

    # ── decisions, under the mutex ────────────────────────────────────────────────────────────────────────

    def _pause(self, chat: str, after_s: float, sent: _Sent) -> tuple[float, bool]:
        sent.until[chat] = max(sent.until.get(chat, 0.0), self._clock() + after_s)
        return 0.0, True

    def _step(self, chat: str, rates: Sequence[Rate], claim: _Claim, sent: _Sent) -> tuple[float, bool]:
        """Return the seconds until it is worth to look again (0: it goes now), and whether that is news."""
        if claim.given_up:
            return 0.0, False
        now = self._clock()
        claim.chat = self._claim(chat, rates, claim.chat, sent=sent, now=now)
        if claim.chat > now:
            self._forsake(_ALL, claim.all)
            claim.all = None
            return claim.chat - now, False
        claim.all = self._claim(_ALL, [self._rates.overall], claim.all, sent=sent, now=now)
        if claim.all > now:
            return claim.all - now, False
        self._leave(chat, claim)
        for queue in (chat, _ALL):
            insort(sent.at.setdefault(queue, []), now)
        return 0.0, True

    def _claim(
        self, queue: str, rates: Sequence[Rate], own: float | None, *, sent: _Sent, now: float
    ) -> float:
        """Take the first free instant of a queue, behind all that came before; a claim is kept."""
        self._forsake(queue, own)
        waiting = self._queues.setdefault(queue, [])
        ahead = waiting if own is None else waiting[: bisect_right(waiting, own)]
        before = sorted([*sent.at.get(queue, ()), *ahead])
        at = max(now, own or 0.0, sent.until.get(queue, 0.0))
        for rate in rates:
            if len(before) >= rate.count:
                at = max(at, before[-rate.count] + rate.per_s)
        insort(waiting, at)
        return at

    def _forsake(self, queue: str, own: float | None) -> None:
        waiting = self._queues.get(queue, [])
        if own is not None and own in waiting:
            waiting.remove(own)
        if not waiting:
            self._queues.pop(queue, None)

    def _leave(self, chat: str, claim: _Claim) -> None:
        self._forsake(chat, claim.chat)
        self._forsake(_ALL, claim.all)
        claim.chat = claim.all = None


class _File:
    """The shared file: one line of JSON, overwritten in place under its own lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._boot = _boot_id()
        # What was read last came from another start of the machine.
        self.translated = False

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def check(self) -> None:
        """Make sure that no newer version wrote it."""
        with contextlib.suppress(OSError):
            self._open()
            self.read(0.0)

    @contextlib.contextmanager
    def locked(self) -> Any:
        """Hold the lock, if it is free: the value says so."""
        self._open()
        got = durable.try_lock(self._fd)
        try:
            yield got
        finally:
            if got:
                durable.unlock(self._fd)

    def _open(self) -> None:
        if self._fd < 0:
            durable.make_folder(self._path.parent)
            self._fd = durable.open_private(self._path)

    def read(self, now: float) -> _Sent:
        """Read what was sent, in this machine's own time; what cannot be read counts as nothing sent."""
        self.translated = False
        line = os.pread(self._fd, os.fstat(self._fd).st_size, 0).partition(b"\n")[0]
        try:
            content = orjson.loads(line)
            durable.check_version(content["v"], state_file.VERSION, self._path.name, error=NewerFile)
            # Where the system names no start of the machine, each may be another.
            self.translated = not self._boot or content["boot"] != self._boot
            shift = 0.0
            # The machine was started anew since, or it is another one: only the wall clock is the same.
            if self.translated:
                shift = now - content["clock"] - max(0.0, durable.wall_s() - content["wall"])
            return _Sent(
                {str(chat): [each + shift for each in times] for chat, times in content["sent"].items()},
                {str(chat): each + shift for chat, each in content["until"].items()},
            )
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            return _Sent()

    def write(self, sent: _Sent, now: float) -> None:
        """Overwrite it; neither synced nor renamed, since losing it costs a 429 at worst."""
        content = {"v": state_file.VERSION, "boot": self._boot, "clock": now, "wall": durable.wall_s()}
        line = orjson.dumps({**content, "sent": sent.at, "until": sent.until})
        # Padded over what stood there: whoever looks at the file finds one object.
        line = line.ljust(os.fstat(self._fd).st_size - 1) + b"\n"
        if os.pwrite(self._fd, line, 0) < len(line):
            raise OSError("the disk accepted no bytes")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
