"""What happens in this process, counted for Prometheus: turns, models, tools, platforms, the loop.

No label holds the id of a chat, a person or a message, nor any text: only names of the configuration.
"""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from gateway.observer import LetterSent, Observer, PlatformCall, TurnEnded
from session.models.model import ModelCall
from session.tools import ToolRun

PREFIX: Final = "chat_gateway"
# From a turn of `echo` to one with many rounds of tools.
TURN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
CALL_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
LAG_EVERY_S: Final = 0.5


class Metrics(Observer):
    """The counts of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._turns = self._counter("turns", "Finished messages, by outcome.", "result")
        self._turn_s = self._histogram(
            "turn_seconds", "Time from the first attempt at a message to its end.", TURN_S
        )
        self._wait_s = self._histogram(
            "turn_wait_seconds", "Time from acceptance to the first attempt.", TURN_S
        )
        self._calls = self._counter("model_calls", "Model requests, by outcome.", "model", "result")
        self._model_s = self._histogram("model_seconds", "Duration of model requests.", CALL_S, "model")
        self._first_s = self._histogram(
            "model_first_token_seconds", "Time from a request to its first text.", CALL_S, "model"
        )
        self._tokens = self._counter("tokens", "Tokens, as counted by the provider.", "model", "kind")
        self._cost = self._counter("cost_usd", "Cost of requests, in US dollars.", "model")
        self._tools = self._counter("tool_calls", "Tool calls, by outcome.", "tool", "result")
        self._tool_s = self._histogram("tool_seconds", "Duration of tool calls.", CALL_S)
        self._redelivered = self._counter("redelivered", "Redelivered messages.", "box")
        self._sends = self._counter(
            "platform_calls", "Send calls to platforms, by outcome.", "channel", "result"
        )
        self._send_s = self._histogram("platform_call_seconds", "Duration of send calls.", CALL_S, "channel")
        self._letters = self._counter("deliveries", "Messages sent to platforms.", "channel", "result")
        self._letter_s = self._histogram(
            "delivery_wait_seconds",
            "Time from the creation of an outbound message to its first attempt.",
            CALL_S,
            "channel",
        )
        self._lag_s = self._histogram("loop_lag_seconds", "Delay of the event loop.", LAG_S)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(name, words, labels, namespace=PREFIX, registry=self.registry)

    def _histogram(self, name: str, words: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, words, labels, namespace=PREFIX, buckets=bounds, registry=self.registry)

    def text(self) -> bytes:
        """Write all counts in Prometheus' text format."""
        return generate_latest(self.registry)

    async def watch_loop(self) -> None:
        """Measure, until cancelled, how late the loop wakes whoever sleeps."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag_s.observe(max(clock() - due, 0.0))

    # -- what is heard -----------------------------------------------------------------------------

    def model_called(self, call: ModelCall) -> None:
        """Count a request."""
        self._calls.labels(call.model, "failed" if call.failed else "answered").inc()
        if not call.failed:
            self._model_s.labels(call.model).observe(call.took_s)
        if call.first_s is not None:
            self._first_s.labels(call.model).observe(call.first_s)
        if call.usage is not None:
            self._tokens.labels(call.model, "prompt").inc(call.usage.prompt)
            self._tokens.labels(call.model, "completion").inc(call.usage.completion)
            if call.usage.price is not None:
                self._cost.labels(call.model).inc(max(call.usage.price, 0.0))

    def tool_ran(self, run: ToolRun) -> None:
        """Count a call of a tool."""
        self._tools.labels(run.tool or "unknown", "failed" if run.failed else "ended").inc()
        self._tool_s.observe(run.took_s)

    def turn_ended(self, ended: TurnEnded) -> None:
        """Count a message that has ended."""
        self._turns.labels(ended.result).inc()
        self._turn_s.observe(ended.took_s)
        if ended.waited_s is not None:
            self._wait_s.observe(ended.waited_s)

    def redelivered(self, box: str) -> None:
        """Count a letter that may have come before."""
        self._redelivered.labels(box.partition(".")[0]).inc()

    def called(self, call: PlatformCall) -> None:
        """Count a call to a platform."""
        self._sends.labels(call.channel, call.result).inc()
        self._send_s.labels(call.channel).observe(call.took_s)

    def letter_sent(self, sent: LetterSent) -> None:
        """Count an outbound letter that has ended."""
        self._letters.labels(sent.channel, sent.result).inc()
        if sent.waited_s is not None:
            self._letter_s.labels(sent.channel).observe(sent.waited_s)
