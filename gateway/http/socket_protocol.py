"""uvicorn's WebSocket protocol, ended where a client breaks the protocol or takes no answer."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

# A client that sends pings and reads no pong is cut off when so much waits to be sent.
MAX_WAITING_BYTES = 8 * 1024 * 1024


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket."""

    def data_received(self, data: bytes) -> None:
        """Read frames; a client that breaks the protocol loses its connection, without an error of ours."""
        try:
            super().data_received(data)
        except (InvalidState, AssertionError):
            self.transport.close()
        if self.conn.handshake_exc is not None and not self.handshake_complete:
            # uvicorn leaves what only looks like an upgrade, such as a POST, without an answer.
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.transport.close()

    def handle_ping(self) -> None:
        """Answer, as long as the answers are taken."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.transport.abort()
