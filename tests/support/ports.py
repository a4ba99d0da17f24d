"""Kept ports, as `chat-gateway chaos` has them."""

from gateway.chaos.ports import KeptPort

__all__ = ["KeptPort"]
