"""What an application consists of, as the modules see it that show how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gateway.app.clock import Clock
from gateway.app.replied import RepliedChannels
from gateway.app.sessions import SessionServices
from gateway.config.settings import Settings
from gateway.outbound.unserved import Row
from gateway.queue.mailbox import Mailbox
from gateway.turns.worker import Worker
from gateway.workers.workers import Workers

if TYPE_CHECKING:
    from gateway.outbound.adapters import Adapter

Role = Literal["all", "channels", "session"]


class Parts(Protocol):
    """An application, by its parts; ``unserved`` are the outbound boxes nobody takes from, as last seen."""

    settings: Settings
    role: Role
    started_at: datetime
    mailbox: Mailbox
    replied: RepliedChannels
    services: SessionServices | None
    worker: Worker | None
    workers: Workers | None
    ready: asyncio.Event
    ready_at: datetime | None
    adapters: list[Adapter]
    clock: Clock | None
    depths_within_s: float
    unserved: list[Row]

    async def ask_workers(self, what: str, **arguments: Any) -> Sequence[Any]:
        """Ask all of its workers that work."""
        ...
