"""The messages that wait or run in lanes, looked at and stopped from beside: wherever their lanes are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.dispatch.lanes import Lanes


@dataclass(frozen=True, slots=True)
class OpenLetter:
    """A message in a lane; ``refs`` are the files that it brings, ``begun`` whether its turn runs."""

    key: str
    id: str
    refs: tuple[str, ...] = ()
    begun: bool = False


class OpenLetters(Protocol):
    """What the lanes of a gateway hold, in this process or in its workers."""

    async def keys(self) -> list[str]:
        """List the chats that have messages."""
        ...

    async def of(self, keys: Collection[str]) -> Sequence[OpenLetter]:
        """List the messages of some chats, those of each in their order."""
        ...

    async def stop(self, key: str, only: str = "") -> None:
        """Stop the turn that runs for a chat; with ``only``, where it is that of this message."""
        ...

    async def close(self, keys: Collection[str]) -> None:
        """Let no turn begin of what comes for some chats from now on, until ``reopen``."""
        ...

    async def reopen(self, keys: Collection[str]) -> None:
        """End one ``close``."""
        ...

    async def parked_whole(self, message_id: str, key: str | None) -> None:
        """Return when no message of this id is in the midst of being parked."""
        ...

    async def cleared(self, key: str) -> None:
        """End what another process does behind the turns of a conversation that was cleared."""
        ...

    async def counted(self) -> None:
        """Return when what other processes have spent is on disk."""
        ...


class LettersHere:
    """Those of the lanes of this process."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    async def keys(self) -> list[str]:
        """See ``OpenLetters``, as for all that follow."""
        return [lane.key for lane in self._lanes]

    async def of(self, keys: Collection[str]) -> Sequence[OpenLetter]:
        """List the messages of some chats."""
        found = []
        for key in keys:
            lane, begun = self._lanes.get(key), self._lanes.begun(key)
            for entry in lane.entries if lane is not None else ():
                refs = tuple(file.ref for file in entry.inbound.files if file.ref)
                found.append(OpenLetter(key, entry.inbound.id, refs, entry is begun))
        return found

    async def stop(self, key: str, only: str = "") -> None:
        """Stop the turn that runs."""
        begun = self._lanes.begun(key)
        if begun is not None and only in ("", begun.inbound.id):
            self._lanes.stop(key)

    async def close(self, keys: Collection[str]) -> None:
        """Close their lanes."""
        for key in keys:
            self._lanes.close(key)

    async def reopen(self, keys: Collection[str]) -> None:
        """Open their lanes."""
        for key in keys:
            self._lanes.reopen(key)

    async def parked_whole(self, message_id: str, key: str | None) -> None:
        """Wait for the parking of a message."""
        await self._lanes.parked_whole(message_id, key)

    async def cleared(self, key: str) -> None:
        """Do nothing: there is no other process."""

    async def counted(self) -> None:
        """Do nothing, too."""
