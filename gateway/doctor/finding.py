"""What doctor finds, and how long it waits for what it asks: nothing can hold it up for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from channels.errors import ChannelError
from gateway.config import finding
from gateway.errors import GatewayError
from session.disk.threads import start_thread
from session.errors import SessionError

T = TypeVar("T")
Level = Literal["ok", "warn", "fail"]
# A local disk answers within a moment, a network's folder whose server is away never.
LOCAL_S: Final = 20.0
# What is told to end has so long for it.
GRACE_S: Final = 3.0
DISK_CURE: Final = "check the disk, or the network drive of this folder"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, how it stands, in words, and what to do about it."""

    name: str
    level: Level
    text: str
    cure: str = ""
    # Whether what was looked at never answered: whoever touches it next would wait as long.
    hangs: bool = False

    def as_dict(self) -> dict[str, str]:
        """Return it as clients see it."""
        return {"name": self.name, "level": self.level, "text": self.text, "cure": self.cure}


Look = Callable[[], Iterable[Check]]
# Looks that are not begun yet, one after the other.
Steps = Iterator[Awaitable[Sequence[Check]]]


class Hung(Exception):
    """What was asked has not answered in time; it is left to itself."""


async def in_time(work: asyncio.Future[T], within_s: float) -> T:
    """Return what ``work`` comes to.

    Raises:
        Hung: it takes longer than ``within_s`` seconds. Nobody waits for its end: nothing can end a thread
            that waits for a file, and a task that is cancelled may wait for such a thread.
    """
    await asyncio.wait((work,), timeout=within_s)
    if not work.done():
        # What it ends in some day, nobody asks any more.
        work.cancel()
        raise Hung
    return work.result()


def in_own_loop(
    name: str, work: Callable[[], Coroutine[Any, Any, T]], *, within_s: float
) -> asyncio.Future[T]:
    """Begin ``work`` in a thread with a loop of its own, which nothing that stands still there holds up here.

    After ``within_s`` seconds it is cancelled, so that it ends the processes that it began, and comes to
    ``Hung``; where its loop stands still, only who waits for it can turn away.
    """

    async def limited() -> T:
        try:
            async with asyncio.timeout(within_s):
                return await work()
        except TimeoutError:
            raise Hung from None

    return start_thread(lambda: asyncio.run(limited()), name=f"doctor-{name}")


async def bounded(
    name: str,
    work: asyncio.Future[T],
    *,
    within_s: float,
    asked: str,
    cure: str,
    where: Path | None = None,
    grace_s: float = 0.0,
) -> T | Check:
    """Return what ``work`` comes to; what fails, or takes longer than ``within_s`` seconds, is a finding.

    ``asked`` is what does not answer then, ``cure`` what to do about it and about an error without a hint.
    ``where``: the path that a refusal of the disk is put into words for; ``grace_s``: how many seconds what
    ends by itself may take for that.
    """
    try:
        return await in_time(work, within_s + grace_s)
    except Hung:
        return Check(name, "fail", f"no answer from {asked} within {within_s:g} s", cure, hangs=True)
    except (GatewayError, SessionError, ChannelError) as error:
        return Check(name, "fail", str(error), error.hint or cure)
    except OSError as error:
        said = finding.explain(where, error) if where is not None else ""
        return Check(
            name, "fail", str(said or error), "check the files there, and who owns them" if said else cure
        )


async def findings(name: str, work: asyncio.Future[list[Check]], **options: Any) -> list[Check]:
    """Return what ``work`` found, or the finding that it failed; ``options``: as ``bounded``."""
    found = await bounded(name, work, **options)
    return [found] if isinstance(found, Check) else found


async def looked(name: str, look: Look, place: Path, *, within_s: float = LOCAL_S) -> list[Check]:
    """Look at one thing in a thread; what cannot be read there is its finding, and ends no other."""
    looking = start_thread(lambda: list(look()), name=f"doctor-{name}")
    return await findings(name, looking, within_s=within_s, asked=str(place), cure=DISK_CURE, where=place)


def patient(usual_s: float, local_s: float) -> float:
    """Return how long something is waited for that takes longer than a look at the disk does.

    Whoever is in more of a hurry than we are (``local_s`` is not ``LOCAL_S``) waits for nothing longer.
    """
    return usual_s if local_s == LOCAL_S else min(usual_s, local_s)
