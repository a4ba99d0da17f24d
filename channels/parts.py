"""Gathers the messages of one album or one long text, which a platform delivers one by one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

import durable
from channels.base import Arrival
from channels.message import PARTS

T = TypeVar("T")
# Arrivals with what their adapter needs to know of each.
Batch = list[tuple[Arrival, T]]

# A part waits so long for the next one.
WAIT_S: Final = 1.0
_MAX_PARTS: Final = 50
_MAX_ALBUMS: Final = 1_000
_COMMAND: Final = re.compile(r"/\w+(@\w+)?(\s|\Z)")


@dataclass(slots=True)
class _Group(Generic[T]):
    album: str | None
    parts: Batch[T] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    def takes(self, arrival: Arrival) -> bool:
        if arrival.kind != "message" or arrival.part_of != self.album:
            return False
        if self.album is not None:
            return True
        first, _ = self.parts[0]
        # All parts of a reply are replies to the same message.
        is_same = (
            arrival.reply_to in (None, first.reply_to) and arrival.forwarded_from == first.forwarded_from
        )
        return (
            is_same and not arrival.files and bool(arrival.text.strip()) and not _COMMAND.match(arrival.text)
        )


class Parts(Generic[T]):
    """Holds back the parts of albums and long texts until the next one has had its time to come.

    Args:
        ready: called with a batch whose last part had waited long enough.
        wait_s: how long each part waits for the next one.
    """

    def __init__(self, ready: Callable[[Batch[T]], None], *, wait_s: float = WAIT_S) -> None:
        self._ready = ready
        self._wait_s = wait_s
        self._groups: dict[tuple[str, str], _Group[T]] = {}
        # Albums that were handed on, and whether the bot was meant by them.
        self._albums: durable.BoundedDict[str, bool] = durable.BoundedDict(_MAX_ALBUMS)

    @property
    def waiting(self) -> bool:
        """Whether a part waits for further ones."""
        return bool(self._groups)

    def take(self, arrival: Arrival, mark: T) -> list[Batch[T]]:
        """Take an arrival in; return what is to be handed on now, in order, perhaps nothing.

        Whatever else the same person writes in the same chat ends a group before it. Others pass it by.
        """
        place = (arrival.chat_id, arrival.sender.id)
        group, ready = self._groups.get(place), []
        if group is not None and not group.takes(arrival):
            ready.append(self._close(place))
            group = None
        begins = arrival.kind == "message" and (arrival.part_of is not None or arrival.long)
        if group is None and (not begins or _COMMAND.match(arrival.text)):
            return [*ready, [(arrival, mark)]]
        if group is None:
            group = self._groups[place] = _Group(arrival.part_of)
        group.parts.append((arrival, mark))
        if group.timer is not None:
            group.timer.cancel()
        # The last part of a long text is shorter than the others.
        if len(group.parts) >= _MAX_PARTS or (group.album is None and not arrival.long):
            ready.append(self._close(place))
        else:
            group.timer = asyncio.get_running_loop().call_later(self._wait_s, self._end, place)
        return ready

    def flush(self, chat_id: str) -> list[Batch[T]]:
        """Return what waits in a chat, which is then held back no longer."""
        return [self._close(place) for place in list(self._groups) if place[0] == chat_id]

    def close(self) -> None:
        """Let go of all that waits: its platform delivers it again."""
        for group in self._groups.values():
            if group.timer is not None:
                group.timer.cancel()
        self._groups.clear()

    def _end(self, place: tuple[str, str]) -> None:
        self._ready(self._close(place))

    def _close(self, place: tuple[str, str]) -> Batch[T]:
        group = self._groups.pop(place)
        if group.timer is not None:
            group.timer.cancel()
        mentioned = any(arrival.mentioned for arrival, _ in group.parts)
        if group.album is not None:
            # A part that comes late is meant as those before it were.
            mentioned = self._albums[group.album] = mentioned or self._albums.get(group.album, False)
        first, _ = group.parts[0]
        if len(group.parts) == 1:
            return [(replace(first, mentioned=mentioned, part_of=None), group.parts[0][1])]
        part_of = group.album or first.id
        ids = [arrival.id for arrival, _ in group.parts]
        parts: Batch[T] = []
        for arrival, mark in group.parts:
            meta = {**arrival.meta, PARTS: ids}
            # All of them are replies to one message, which is shown once.
            quoted = arrival.quoted if arrival is first or arrival.reply_to != first.reply_to else None
            part = replace(arrival, mentioned=mentioned, quoted=quoted, part_of=part_of, meta=meta)
            parts.append((part, mark))
        return parts
