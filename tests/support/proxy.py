"""A proxy to break, as `chat-gateway chaos` has it."""

from gateway.chaos.proxy import Proxy

__all__ = ["Proxy"]
