"""A private RabbitMQ node, as `chat-gateway chaos` has it."""

from gateway.chaos.broker import BIN, START_HEADER, Broker, answers

__all__ = ["BIN", "START_HEADER", "Broker", "answers"]
