"""One WebSocket: uvicorn's, which stays among the connections of its server until it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from gateway.http.connections import LET_IN, Connection

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

# A client that pings and takes none of the answers is cut when so much waits: no deadline holds for it.
MAX_WAITING_BYTES = 8 * 1024 * 1024


class Socket(WebSocketsSansIOProtocol):
    """Took over from a ``Connection``, whose place, deadline and descriptor it uses on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over; the transport is still the connection's."""
        super().connection_made(transport)
        former = self.transport.get_protocol()
        assert isinstance(former, Connection)
        self._former = former
        self._routes: Any = self.app
        self.app = self._carry

    def data_received(self, data: bytes) -> None:
        """Read frames; what cannot be answered any more ends the connection, and is no fault of ours."""
        try:
            super().data_received(data)
        except InvalidState:
            # Text that is none, and behind it at once the client's own end, which was answered first.
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._former.gone()
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        """Answer, as long as what is answered is taken."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self._former.cut("takes nothing")

    async def _carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[LET_IN] = self._former.let_in
        await self._routes(scope, receive, send)
