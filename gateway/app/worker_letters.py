"""The letters in the lanes of a gateway's workers, as ``OpenLetters``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.turns.open_letters import OpenLetter
from gateway.workers.workers import Workers

# A letter that is being parked waits for a broker, perhaps.
PARKED_WITHIN_S = 10.0


class LettersOfWorkers:
    """Asks all workers; one that does not answer in time has none, and the fence of the key keeps it out."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def keys(self) -> list[str]:
        """See ``OpenLetters``, as for all that follow."""
        return [key for each in await self._workers.ask("keys") for key in each]

    async def of(self, keys: Collection[str]) -> Sequence[OpenLetter]:
        """List the letters of some chats."""
        rows = [row for each in await self._workers.ask("letters", keys=sorted(keys)) for row in each]
        return [OpenLetter(row["key"], row["id"], tuple(row["refs"]), row["begun"]) for row in rows]

    async def stop(self, key: str, only: str = "") -> None:
        """Stop the turn that runs."""
        await self._workers.ask("stop", key=key, only=only)

    async def close(self, keys: Collection[str]) -> None:
        """Close lanes."""
        await self._workers.ask("close", keys=sorted(keys))

    async def reopen(self, keys: Collection[str]) -> None:
        """Open lanes."""
        await self._workers.ask("reopen", keys=sorted(keys))

    async def parked_whole(self, message_id: str, key: str | None) -> None:
        """Wait for the parking of a letter."""
        await self._workers.ask("parked_whole", within_s=PARKED_WITHIN_S, message_id=message_id, key=key)

    async def cleared(self, key: str) -> None:
        """End what is being summed up of a conversation."""
        await self._workers.ask("cleared", key=key)

    async def counted(self) -> None:
        """Have each write what it has spent."""
        await self._workers.ask("counted")
