"""What a worker answers to the process that started it: what it has and counts, and what it shall do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.app.status import own_lanes
from gateway.dispatch.open_letters import LettersHere
from gateway.service.gauges import families_of_process
from gateway.service.trace import NotTraced, TracedTwice, Tracer
from gateway.workers.merging import packed
from session.transcript.key import SessionKey

if TYPE_CHECKING:
    from gateway.app.application import Application


class Questions:
    """Answers for one application that runs lanes."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._known: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "status": self._status,
            "forget": self._forget,
            "lanes": self._lanes,
            "metrics": self._metrics,
            "trace": self._trace,
            "keys": self._keys,
            "letters": self._letters_of,
            "stop": self._stop,
            "close": lambda keys: self._letters().close(keys),
            "reopen": lambda keys: self._letters().reopen(keys),
            "parked_whole": self._parked_whole,
            "cleared": self._cleared,
            "counted": self._counted,
            "left": self._left,
            "decided": self._decided,
        }

    async def answer(self, what: str, arguments: Mapping[str, Any]) -> Any:
        """Answer one.

        Raises:
            SessionError, GatewayError: it could not be done.
            KeyError: nobody asks that.
        """
        return await self._known[what](**arguments)

    def _letters(self) -> LettersHere:
        assert self._application.worker is not None
        return LettersHere(self._application.worker.lanes)

    async def _status(self) -> dict[str, Any]:
        services = self._application.services
        assert services is not None
        return {
            "lanes": own_lanes(self._application),
            "in_memory": self._application.mailbox.in_memory().as_dict(),
            "memory": services.jobs.shown(),
        }

    async def _forget(self, key: str, cleared: bool) -> None:
        """Read a conversation again that the gateway has changed."""
        services = self._application.services
        assert services is not None
        services.store.forget(SessionKey(key), cleared=cleared)

    async def _lanes(self) -> list[dict[str, Any]]:
        return own_lanes(self._application)

    async def _metrics(self) -> dict[str, Any]:
        letters = sum(lane["waiting"] + (lane["id"] is not None) for lane in own_lanes(self._application))
        return {"families": packed(await families_of_process(self._application)), "letters": letters}

    async def _trace(self, id: str, key: str | None) -> dict[str, Any] | None:
        application = self._application
        assert application.worker is not None
        if not any(lane.find(id) for lane in application.worker.lanes):
            return None
        tracer = Tracer(application.settings, mailbox=application.mailbox, lanes=application.worker.lanes)
        try:
            return await tracer.trace(id, key)
        except (NotTraced, TracedTwice):
            # Whoever asks finds so, too, and says it.
            return None

    async def _keys(self) -> list[str]:
        return await self._letters().keys()

    async def _letters_of(self, keys: list[str]) -> list[dict[str, Any]]:
        return [
            {"key": each.key, "id": each.id, "refs": each.refs, "begun": each.begun}
            for each in await self._letters().of(keys)
        ]

    async def _stop(self, key: str, only: str) -> None:
        await self._letters().stop(key, only)

    async def _parked_whole(self, message_id: str, key: str | None) -> None:
        await self._letters().parked_whole(message_id, key)

    async def _cleared(self, key: str) -> None:
        assert self._application.services is not None
        await self._application.services.end_compactions(key)

    async def _counted(self) -> None:
        assert self._application.services is not None
        await self._application.services.usage_today()

    async def _left(self, key: str, session_id: str) -> None:
        assert self._application.services is not None
        await self._application.services.jobs.left(key, session_id)

    async def _decided(self, id: str) -> None:
        assert self._application.services is not None
        self._application.services.answers.heard(id)
