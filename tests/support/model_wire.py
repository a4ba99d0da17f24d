"""The little of HTTP that a model server speaks, as `chat-gateway chaos` has it."""

from gateway.chaos.model_wire import head, read_request, send, send_event, send_piece

__all__ = ["head", "read_request", "send", "send_event", "send_piece"]
