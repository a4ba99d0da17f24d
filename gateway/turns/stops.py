"""``/stop`` out of line: ends the running turn at once and answers before the letter's own turn comes."""

from __future__ import annotations

from channels.message import Inbound
from gateway.turns.aside import Aside
from gateway.turns.control_order import OWN
from gateway.turns.lanes import Lanes
from session.store.store import Session
from session.turn import commands


class Stops:
    """Stops turns where they run."""

    def __init__(self, *, lanes: Lanes, aside: Aside) -> None:
        self._lanes = lanes
        self._aside = aside

    def runs(self, key: str, message_id: str) -> bool:
        """Say whether the turn of ``key`` that runs here, or waits for its next try, is that of a message."""
        begun = self._lanes.begun(key)
        return begun is not None and begun.inbound.id == message_id

    def stop(self, key: str, asked_id: str = "", *, asked: Inbound | None = None) -> bool:
        """Stop the turn of ``key`` that runs here; False where none does that began before the asking."""
        if self._aside.is_past(key, asked_id):
            return False
        # One that was answered comes again, as from a platform after a crash: what runs now came behind.
        stopped_before = self._aside.stopped_by(key, asked_id) if asked_id else None
        if stopped_before is not None and not self.runs(key, stopped_before):
            return False
        stopped = self._lanes.stop(key, asked_id)
        if stopped is None:
            return False
        if asked_id and not asked_id.startswith(OWN):
            like = (asked or stopped.inbound).model_copy(update={"id": asked_id})
            if asked is None:
                like = like.model_copy(update={"platform_id": None, "meta": {}})
            self._aside.answer(like, _stopped, stops=stopped.inbound.id)
        return True


async def _stopped(_: Session) -> str:
    return commands.STOPPED
