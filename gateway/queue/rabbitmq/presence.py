"""Keeps this daemon among those that share the partitions, and says when to enter and to leave their lines.

Every daemon that takes inbound letters tells a beat each second on an exchange that all of them hear. It
proves nothing: who gets a letter is the broker's to say, and who may write the fence's. So a beat that is
lost, or a daemon that is taken for dead while it only is slow, costs nothing but a place in a line.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import structlog

import durable
from durable import first_of
from gateway.errors import MailboxDown
from gateway.queue.rabbitmq.alongside import alongside
from gateway.queue.rabbitmq.beat import Beat, read_beat
from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.roster import Roster, Standing
from gateway.queue.rabbitmq.stream import Stream
from gateway.queue.rabbitmq.topology import Names

BEAT_S = 1.0
# The others answer a newcomer at once: who has not by then is heard later.
ANSWERS_S = 0.15
# A daemon that does not hear itself for so long does not know the others, and serves what it gets.
DEAF_S = 10.0
# So long one waits at a start for its own first beat, and for those of others that start with it.
FIRST_S = 3.0
# Somebody in the line whom no beat tells of: one that was just killed or frozen, or an older version.
STRANGER_S = 2.0
# Pauses between probes of a queue whose letters go to somebody of whom nothing is known.
PROBE_S = (1.0, 8.0)
_log = structlog.get_logger()


class Place:
    """The place of this daemon in the line of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.standing: Standing | None = None
        self.opening = 0
        self.inside = self.alone = False
        # Set while it is to enter, and while it is to make way for the owner.
        self.wanted, self.leaving = asyncio.Event(), asyncio.Event()
        self.put_off_until = 0.0
        self.stream: Stream | None = None
        self.probe_at, self.probe_pause_s = 0.0, PROBE_S[0]

    @property
    def active(self) -> bool:
        """Whether the queue serves this daemon and, while the broker answers it, can serve nobody else."""
        stream = self.stream
        return stream is not None and stream.active and not stream.closed and stream.is_proven()


class Presence:
    """The part of this daemon in sharing out the partitions.

    Args:
        daemon: its name, unlike that of any other daemon; empty: one is drawn.
        tell: sends a beat to all who listen, or drops it.
        listen: opens what is told.
        attached: returns the connection that takes letters, once it is up.
        blocked: whether the broker takes no messages now, so that no beat arrives.
        probe: has the queue of a partition send something to whom it serves.
        among: as how many daemons this one starts; it waits for the others before it enters its first line,
            but not long.
    """

    def __init__(
        self,
        names: Names,
        *,
        daemon: str,
        tell: Callable[[bytes], Awaitable[None]],
        listen: Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]],
        attached: Callable[[], Awaitable[Link]],
        blocked: Callable[[], bool],
        probe: Callable[[int], None],
        among: int = 1,
    ) -> None:
        self._names, self._tell, self._listen, self._among = names, tell, listen, among
        self._attached, self._blocked, self._probe = attached, blocked, probe
        self.me = daemon or durable.token_hex(8)
        self._where = f"{socket.gethostname()}:{os.getpid()}"
        self._roster = Roster(self.me, names.partitions)
        self._places = [Place(partition) for partition in range(names.partitions)]
        self._number = 0
        self._odd_told = False
        self._ticked_at = 0.0
        self._hears = asyncio.Event()
        self._deaf_since: float | None = None
        self._due, self._looked = asyncio.Event(), asyncio.Event()

    @property
    def others(self) -> int:
        """How many other daemons are known to live."""
        return len(set(self._roster.beats) - {self.me})

    def place(self, partition: int) -> Place:
        """Return the place in the line of a partition."""
        return self._places[partition]

    def has(self, partition: int) -> bool:
        """Say whether letters of a partition are worked on here and nowhere else, now and for a while."""
        place = self._places[partition]
        # Beats prove nothing: one that joins may not have heard yet of the daemon that it stands behind, and
        # an older version tells none. What the broker sends proves that this one is served.
        if place.leaving.is_set() or not place.active:
            return False
        # Without news of the others it serves what it is given, as the only one would.
        return self._roster.has(partition) if self._hears.is_set() else place.inside

    @asynccontextmanager
    async def taking(self, on_crash: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Take part while the context is open; ``on_crash`` hears of a part that fails.

        Without its beats this daemon would be taken for dead and stay in its lines all the same.
        """
        async with alongside({"presence hear": self._hear(), "presence beat": self._beat()}, on_crash):
            yield

    async def farewell(self) -> None:
        """Tell the others that this daemon takes no more."""
        await self._tell(Beat(self.me, self._names.partitions, self._number + 1, gone=True).to_bytes())

    async def looked(self) -> None:
        """Return when it is known which lines to enter first."""
        await self._looked.wait()

    # -- standing in lines -------------------------------------------------------------------------------

    def entering(self, place: Place, stream: Stream) -> None:
        """Note behind whom this daemon stands that enters now."""
        place.stream, place.probe_at, place.probe_pause_s = stream, 0.0, PROBE_S[0]
        ahead = self._roster.behind_owner(place.partition)
        own = self._roster.owner(place.partition) == self.me
        place.standing = Standing(None if own else ahead)
        place.opening += 1

    def entered(self, place: Place) -> None:
        """Tell the others that it stands in the line."""
        place.inside, place.alone = True, False
        self._decide()
        self._due.set()

    def left(self, place: Place) -> None:
        """Tell the others that it does not any more."""
        place.standing, place.inside, place.stream = None, False, None
        self._decide()
        self._due.set()

    def wants_alone(self, place: Place) -> None:
        """Ask the heir out of the line: what comes back is to come back here."""
        if self._hears.is_set() and self._roster.owner(place.partition) == self.me:
            place.alone = True
            self._due.set()

    def put_off(self, place: Place) -> None:
        """Stay in a line in which somebody stands of whom nothing is known."""
        place.put_off_until = asyncio.get_running_loop().time() + STRANGER_S
        place.leaving.clear()

    def known_in_line(self, place: Place) -> int:
        """Count who is known to stand in a line, this daemon included."""
        return self._roster.in_line(place.partition) + 1

    def is_clear(self, place: Place) -> bool:
        """Say whether nobody but the owner would be handed what this daemon gives back."""
        return not self._roster.in_front(place.partition)

    # -- beats -------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        async with self._listen() as bodies:
            async for body in bodies:
                try:
                    beat = read_beat(body)
                    if beat is None:
                        self._tell_odd("not understood")
                    else:
                        self._heard(beat)
                except Exception as error:  # noqa: BLE001 - one beat ends here; a traceback would show it
                    # Deaf, this daemon would share with nobody until its end.
                    self._tell_odd(type(error).__name__)

    def _heard(self, beat: Beat) -> None:
        # That this one lives is no news.
        first = beat.daemon == self.me and self.me not in self._roster.beats
        changed = self._roster.hear(beat, ticks=beat.daemon == self.me and self._is_a_beat_later())
        if beat.daemon == self.me:
            self._deaf_since = None
            self._hears.set()
        elif beat.asks or (changed and not beat.gone):
            self._due.set()
        if changed and not first:
            _log.info("daemons.changed", daemons=len(self._roster.daemons))
        self._decide()

    def _tell_odd(self, error: str) -> None:
        """Say once in the log that something else than a beat was heard, and not what it says."""
        if not self._odd_told:
            self._odd_told = True
            hint = "another program or version tells it: see who may write to the exchange"
            _log.warning("presence.odd_beat", exchange=self._names.daemons, error=error, hint=hint)

    async def _beat(self) -> None:
        link: Link | None = None
        began = asyncio.get_running_loop().time()
        while True:
            now = await self._attached()
            if now is not link and not await self._prepared(now):
                continue
            link = now
            self._due.clear()
            await self._tell(self._own().to_bytes())
            self._look_whether_deaf()
            if not self._looked.is_set():
                await self._first_look(began)
                continue
            self._decide()
            self._ask_for_proof()
            await first_of(self._due.wait(), timeout_s=BEAT_S)

    async def _prepared(self, link: Link) -> bool:
        try:
            channel = await link.channel()
            try:
                await channel.declare_exchange(self._names.daemons, "fanout")
            finally:
                await channel.close()
        except MailboxDown as error:
            if not link.ended.is_set():
                _log.warning("presence.refused", error=str(error), hint=error.hint)
                self._looked.set()
                self._decide()
                await first_of(link.ended.wait(), timeout_s=DEAF_S)
            return False
        return True

    async def _first_look(self, began: float) -> None:
        """Hear who else lives before the first line is entered: what one took, it would have to give back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * ANSWERS_S):
                await self._hears.wait()
                await asyncio.sleep(ANSWERS_S)
                # Each letter that one of them gave up to another would be known as one that came before.
                if self.others + 1 >= self._among:
                    self._looked.set()
        if asyncio.get_running_loop().time() - began > FIRST_S:
            self._looked.set()

    def _ask_for_proof(self) -> None:
        """Have each queue that this daemon should be served by send something, until one did."""
        now = asyncio.get_running_loop().time()
        for place in self._places:
            owns = self._roster.owner(place.partition) == self.me
            if not (owns and place.inside) or place.active or now < place.probe_at:
                continue
            self._probe(place.partition)
            place.probe_at = now + place.probe_pause_s
            place.probe_pause_s = min(2 * place.probe_pause_s, PROBE_S[1])

    def _is_a_beat_later(self) -> bool:
        """Say whether this beat counts as time: those that tell of a change come in between."""
        now = asyncio.get_running_loop().time()
        if now - self._ticked_at < BEAT_S * 0.9:
            return False
        self._ticked_at = now
        return True

    def _own(self) -> Beat:
        self._number += 1
        stands = {each.partition: each for each in self._places if each.inside}
        behind = frozenset(
            number
            for number, each in stands.items()
            if each.standing is not None
            and each.standing.behind is not None
            and each.standing.behind == self._roster.behind_owner(number)
        )
        return Beat(
            self.me,
            self._names.partitions,
            self._number,
            lines={number: each.opening for number, each in stands.items()},
            behind=behind,
            alone=frozenset(each.partition for each in self._places if each.alone),
            asks=not self._looked.is_set(),
            place=self._where,
        )

    def _look_whether_deaf(self) -> None:
        # While the broker takes no messages nobody hears anything, and everybody stays where he is.
        now = asyncio.get_running_loop().time()
        if self._blocked() or self._deaf_since is None:
            self._deaf_since = now
        elif self._hears.is_set() and now - self._deaf_since > DEAF_S:
            _log.warning(
                "presence.unheard", hint="what other daemons do is not known: each serves what it gets"
            )
            self._hears.clear()
            self._roster = Roster(self.me, self._names.partitions)

    def _decide(self) -> None:
        """Say of each line whether to enter or to leave it."""
        if not self._looked.is_set():
            return
        now = asyncio.get_running_loop().time()
        for place in self._places:
            step = self._roster.step(place.partition, place.standing)
            _set(place.wanted, step == "enter")
            leaves = step == "leave" and self._roster.settled and now >= place.put_off_until
            _set(place.leaving, leaves)


def _set(event: asyncio.Event, on: bool) -> None:
    if on != event.is_set():
        event.set() if on else event.clear()
