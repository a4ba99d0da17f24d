"""Traces of messages over processes: each step becomes a span of OpenTelemetry once it is over.

The id of a trace and those of the spans that others stand below are made of the message's own id, so that a
repeat is the same span, and none has to be held open over queues, waits and restarts. No span holds a text.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import durable
from channels.message import Inbound
from gateway.observer import LetterSent, Observer, PlatformCall, TurnEnded
from gateway.queue.mailbox import carried
from session.models.model import ModelCall, Usage
from session.tools import ToolRun
from session.transcript.key import SUBAGENTS
from session.transcript.line import read_time

HEADER = "traceparent"
# What is not sent by then is lost: a collector that is away must not hold up the end of the daemon.
CLOSE_WITHIN_S = 3.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_BITS = 2**56


class _Ids(IdGenerator):
    """Gives the next span the ids that were chosen for it; random ones where none were."""

    def __init__(self) -> None:
        self.span: int | None = None
        self.trace: int | None = None

    def generate_span_id(self) -> int:
        chosen, self.span = self.span, None
        return chosen or durable.random_below(2**63) + 1

    def generate_trace_id(self) -> int:
        chosen, self.trace = self.trace, None
        return chosen or durable.random_below(2**127) + 1


@dataclass(frozen=True, slots=True)
class _Times:
    """From when to when a span lasts, in nanoseconds since 1970."""

    start: int
    end: int

    @classmethod
    def until_now(cls, took_s: float, *, ago_s: float = 0.0) -> _Times:
        """Return the times of what took so long and ended ``ago_s`` seconds ago."""
        end = durable.wall_ns() - int(ago_s * 1e9)
        return cls(end - int(took_s * 1e9), end)


class Tracing(Observer):
    """Sends spans to a collector.

    Args:
        endpoint: its address; empty: as ``OTEL_EXPORTER_OTLP_…`` say.
        sample: which share of the messages is traced.
        role: that of this process.
    """

    def __init__(self, endpoint: str = "", *, sample: float = 1.0, role: str = "all") -> None:
        self._sample = sample
        self._ids = _Ids()
        named = {"service.name": "chat-gateway", "service.version": version("chat-gateway")}
        resource = Resource.create({**named, "chat_gateway.role": role})
        self._provider = TracerProvider(
            resource=resource, sampler=ALWAYS_ON, id_generator=self._ids, shutdown_on_exit=False
        )
        exporter = (
            OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("chat-gateway")

    # -- what is heard -----------------------------------------------------------------------------

    def received(self, inbound: Inbound) -> dict[str, str]:
        """Begin the trace of a message; its letter carries that on."""
        trace_id = _number(16, inbound.key, inbound.id)
        if (trace_id % _BITS) / _BITS >= self._sample:
            return {}
        span_id = _number(8, inbound.key, inbound.id, "receive")
        accepted = read_time(inbound.received_at)
        now = durable.wall_ns()
        start = int(accepted.timestamp() * 1e9) if accepted is not None else now
        self._ids.trace = trace_id
        self._emit(
            "receive", None, _Times(min(start, now), now), span_id, _of(inbound), kind=SpanKind.CONSUMER
        )
        return {HEADER: _header(trace_id, span_id)}

    def working(self, inbound: Inbound, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Let what is done and put in a turn stand below its span."""
        above = _context(headers)
        if above is None:
            return headers
        return {**headers, HEADER: _header(above.trace_id, _turn_id(above, inbound))}

    def model_called(self, call: ModelCall) -> None:
        """Send the span of a request to a model."""
        fields: dict[str, Any] = {"gen_ai.request.model": call.model, "gen_ai.operation.name": "chat"}
        if call.usage is not None:
            fields |= _used(call.usage)
        if call.first_s is not None:
            fields["chat_gateway.first_token_s"] = round(call.first_s, 6)
        times = _Times(call.began_ns, call.began_ns + int(call.took_s * 1e9))
        self._below("model call", times, fields, fault=call.failed, kind=SpanKind.CLIENT)

    def tool_ran(self, run: ToolRun) -> None:
        """Send the span of a call of a tool."""
        times = _Times(run.began_ns, run.began_ns + int(run.took_s * 1e9))
        fields = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": run.tool or "unknown"}
        self._below("tool call", times, fields, fault="failed" if run.failed else "")

    def turn_ended(self, ended: TurnEnded) -> None:
        """Send the spans of a message that has ended: how long it waited, its turn, the put of its reply."""
        above = _context(ended.headers)
        if above is None:
            return
        inbound, figures = ended.inbound, ended.figures
        turn_id = _turn_id(above, inbound)
        turn = _Times.until_now(ended.took_s - ended.put_s, ago_s=ended.put_s)
        if ended.waited_s:
            waited = _Times(turn.start - int(ended.waited_s * 1e9), turn.start)
            self._emit("queue wait", above, waited, _number(8, str(turn_id), "wait"), _of(inbound))
        fields = _of(inbound) | {
            "chat_gateway.result": ended.result,
            "chat_gateway.tries": figures.tries,
            "chat_gateway.model_calls": figures.calls,
            **_used(figures.usage),
        }
        name = "subagent" if inbound.channel == SUBAGENTS else "turn"
        self._emit(name, above, turn, turn_id, fields, fault=ended.reason)
        below = SpanContext(above.trace_id, turn_id, is_remote=True, trace_flags=_SAMPLED)
        put = _Times.until_now(ended.put_s)
        self._emit("put", below, put, _number(8, str(turn_id), "put"), _of(inbound), kind=SpanKind.PRODUCER)

    def called(self, call: PlatformCall) -> None:
        """Send the span of one call to a platform."""
        above = _context(carried.get())
        if above is None:
            return
        delivery = SpanContext(
            above.trace_id, _delivery_id(above, call.id), is_remote=True, trace_flags=_SAMPLED
        )
        fields = {
            "chat_gateway.channel": call.channel,
            "chat_gateway.piece": call.piece,
            "chat_gateway.result": call.result,
        }
        times = _Times(call.began_ns, call.began_ns + int(call.took_s * 1e9))
        fault = "" if call.result == "accepted" else call.result
        self._emit("send", delivery, times, None, fields, fault=fault, kind=SpanKind.CLIENT)

    def letter_sent(self, sent: LetterSent) -> None:
        """Send the span of an outbound letter that has ended, and of its wait before."""
        above = _context(carried.get())
        if above is None:
            return
        fields = {
            "chat_gateway.channel": sent.channel,
            "chat_gateway.letter_id": sent.id,
            "chat_gateway.result": sent.result,
            "chat_gateway.pieces": sent.pieces,
        }
        span_id = _delivery_id(above, sent.id)
        times = _Times.until_now(sent.took_s)
        if sent.waited_s:
            waited = _Times(times.start - int(sent.waited_s * 1e9), times.start)
            self._emit("queue wait", above, waited, _number(8, str(span_id), "wait"), fields)
        fault = "" if sent.result == "delivered" else sent.result
        self._emit("delivery", above, times, span_id, fields, fault=fault, kind=SpanKind.CONSUMER)

    def close(self) -> None:
        """Send what is held back, for a few seconds at most."""
        last = threading.Thread(target=self._provider.shutdown, name="telemetry", daemon=True)
        last.start()
        last.join(CLOSE_WITHIN_S)

    # -- spans -------------------------------------------------------------------------------------

    def _below(
        self,
        name: str,
        times: _Times,
        fields: Mapping[str, Any],
        *,
        fault: str,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """Send a span below that of the turn which runs here."""
        if (above := _context(carried.get())) is not None:
            self._emit(name, above, times, None, fields, fault=fault, kind=kind)

    def _emit(
        self,
        name: str,
        above: SpanContext | None,
        times: _Times,
        span_id: int | None,
        fields: Mapping[str, Any],
        *,
        fault: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self._ids.span = span_id
        context = trace.set_span_in_context(NonRecordingSpan(above)) if above is not None else None
        span = self._tracer.start_span(
            name, context, kind=kind, attributes=dict(fields), start_time=times.start
        )
        if fault:
            span.set_status(Status(StatusCode.ERROR, fault))
        span.end(times.end)


def _context(headers: Mapping[str, str]) -> SpanContext | None:
    """Read the trace that a letter carries; None where it carries none, or one that is not recorded."""
    if HEADER not in headers:
        return None
    found = TraceContextTextMapPropagator().extract(dict(headers))
    context = trace.get_current_span(found).get_span_context()
    return context if context.is_valid and context.trace_flags.sampled else None


def _number(size: int, *parts: str) -> int:
    """Make an id of so many bytes, always the same of the same parts, and never 0."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:size], "big") or 1


def _turn_id(above: SpanContext, inbound: Inbound) -> int:
    return _number(8, f"{above.trace_id:032x}", "turn", inbound.key, inbound.id)


def _delivery_id(above: SpanContext, out_id: str) -> int:
    return _number(8, f"{above.trace_id:032x}", "delivery", out_id)


def _header(trace_id: int, span_id: int) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def _used(usage: Usage) -> dict[str, Any]:
    fields = {
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.completion,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_written,
    }
    return fields if usage.price is None else fields | {"chat_gateway.cost_usd": usage.price}


def _of(inbound: Inbound) -> dict[str, Any]:
    return {"chat_gateway.channel": inbound.channel, "chat_gateway.message_id": inbound.id}
