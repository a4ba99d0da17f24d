"""Asks the letters of a recording again of another gateway, each in a chat that no platform serves."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from channels.message import MAX_KEY_BYTES
from gateway.errors import GatewayError, Unreachable
from gateway.recording.letter import Letter
from gateway.recording.outcome import OPEN, Outcome, outcome_of

T = TypeVar("T")
# A person who wrote while an answer was being written may have waited long for the next thought.
MOST_BETWEEN_S: Final = 30.0
# Each answer that is waited for takes a connection of a hundred, and new letters need some, too.
MOST_WAITS: Final = 64


class Told(Protocol):
    """How a message of ours ended there."""

    @property
    def text(self) -> str:
        """What was said to it."""
        ...


class Gateway(Protocol):
    """The gateway that is asked."""

    async def hand_in(self, key: str, text: str, message_id: str) -> None:
        """Hand in a message; it is durable then. The same id is the same message."""
        ...

    async def ask(
        self, key: str, text: str, message_id: str, *, within_s: float | None = None
    ) -> Told | None:
        """Wait for how a message ends; None: not within the time."""
        ...

    async def trace(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Tell the life of a message."""
        ...

    async def over_restarts(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what ``work`` does, which is begun again as long as the gateway is away."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """One letter as it was asked again. ``fault``: why the gateway did not take it."""

    letter: Letter
    id: str
    outcome: Outcome
    reply: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How it is asked.

    Args:
        run: part of every chat's name: two runs share no chat, and one that broke off goes on by its name.
        side_by_side: how many chats at once.
        within_s: how long each answer is waited for.
    """

    run: str
    side_by_side: int
    within_s: float


async def replay(
    gateway: Gateway, letters: Sequence[Letter], plan: Plan, *, told: Callable[[int], None] = lambda _: None
) -> list[Played]:
    """Ask all letters, those of a chat in their order; return them in the order of ``letters``.

    A letter that came when all before it in its chat were answered waits for those answers; one that came
    while another was being answered follows that one after the time between the two, thirty seconds at most.
    ``told`` is told how many are through.

    Raises:
        Unreachable: the gateway went away and did not come back; asked again under the same ``run``, what it
            has taken is not asked twice.
    """
    chats: dict[str, list[tuple[int, Letter]]] = {}
    for at, letter in enumerate(letters):
        chats.setdefault(letter.key, []).append((at, letter))
    places, waits = asyncio.Semaphore(plan.side_by_side), asyncio.Semaphore(MOST_WAITS)
    found: dict[int, Played] = {}

    async def chat(numbered: Sequence[tuple[int, Letter]]) -> None:
        async with places:
            played = await _Chat(gateway, plan, [letter for _, letter in numbered], waits).play()
            found.update(zip((at for at, _ in numbered), played, strict=True))
            told(len(found))

    async with asyncio.TaskGroup() as group:
        for numbered in chats.values():
            group.create_task(chat(numbered))
    return [found[at] for at in range(len(letters))]


class _Chat:
    """The letters of one chat."""

    def __init__(
        self, gateway: Gateway, plan: Plan, letters: Sequence[Letter], waits: asyncio.Semaphore
    ) -> None:
        self._gateway = gateway
        self._waits = waits
        self._plan = plan
        self._letters = letters
        self._key = key_of(plan.run, letters[0].key)
        self._answers: list[asyncio.Task[Told | str | None]] = []
        # The letters that are not answered yet, as far as is known.
        self._open: list[int] = []

    async def play(self) -> list[Played]:
        now = asyncio.get_running_loop().time
        handed = now()
        async with asyncio.TaskGroup() as group:
            for at, letter in enumerate(self._letters):
                before = self._letters[at - 1] if at else letter
                if open_ones := self._answered_before(letter):
                    await asyncio.wait(open_ones)
                if before.outcome.ended is not None and before.outcome.ended > letter.at:
                    between = min((letter.at - before.at).total_seconds(), MOST_BETWEEN_S)
                    await asyncio.sleep(handed + between - now())
                fault = await self._hand_in(at)
                handed = now()
                self._open.append(at)
                self._answers.append(group.create_task(self._ask(at) if not fault else _said(fault)))
        return [await self._played(at) for at in range(len(self._letters))]

    def _answered_before(self, letter: Letter) -> list[asyncio.Task[Told | str | None]]:
        """List what is still open of the letters that had ended when it came, as far as is known."""
        self._open = [at for at in self._open if not self._answers[at].done()]
        past = ((at, self._letters[at].outcome.ended) for at in self._open)
        return [self._answers[at] for at, ended in past if ended is None or ended <= letter.at]

    async def _hand_in(self, at: int) -> str:
        """Hand a letter in; return why it was not taken."""
        try:
            await self._gateway.hand_in(self._key, text_of(self._letters[at]), self._id(at))
        except Unreachable:
            raise
        except GatewayError as error:
            return str(error)
        return ""

    async def _ask(self, at: int) -> Told | str | None:
        """Wait for how a letter ends; return why in words where the gateway does not say."""
        text = text_of(self._letters[at])
        try:
            async with self._waits:
                return await self._gateway.ask(self._key, text, self._id(at), within_s=self._plan.within_s)
        except Unreachable:
            raise
        except GatewayError as error:
            return str(error)

    async def _played(self, at: int) -> Played:
        letter, told = self._letters[at], self._answers[at].result()
        if isinstance(told, str):
            return Played(letter, self._id(at), Outcome(OPEN), fault=told)
        try:
            life = await self._gateway.over_restarts(lambda: self._gateway.trace(self._id(at), self._key))
        except Unreachable:
            raise
        except GatewayError as error:
            return Played(letter, self._id(at), Outcome(OPEN), fault=str(error))
        reply = told.text if told is not None else ""
        return Played(letter, self._id(at), outcome_of(life["steps"]), reply)

    def _id(self, at: int) -> str:
        return f"web:{self._plan.run}:{at + 1}"


async def _said(fault: str) -> str:
    return fault


def key_of(run: str, key: str) -> str:
    """Return the chat in which the letters of ``key`` are asked: one of the web, which no platform serves."""
    name = f"web:replay-{run}:{key}"
    # No gateway takes half a character.
    with contextlib.suppress(UnicodeEncodeError):
        if len(name.encode()) <= MAX_KEY_BYTES:
            return name
    return f"web:replay-{run}:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def text_of(letter: Letter) -> str:
    """Return what is asked: the letter's text, else the names of the files that came without one."""
    text = letter.text.encode("utf-8", "replace").decode()
    return text if text.strip() else "\n".join(f"[{name}]" for name in letter.files) or "[empty]"
