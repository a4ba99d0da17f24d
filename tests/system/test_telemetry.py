"""One trace from adapter to delivery, over two processes and a broker, and within one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.otlp_receiver import OtlpReceiver, Span
from tests.support.place import lines_of, with_model
from tests.support.ports import KeptPort
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, apart, with_telegram
from tests.system.test_metrics import samples, scraped

pytestmark = guarantee(
    "operation", "Each message is one trace across all processes, and no span contains its text."
)

LOOK = [("ls", '{"path": "."}')]
STEPS = {"receive", "queue wait", "turn", "model call", "tool call", "put", "delivery", "send"}


def of_one(collector: OtlpReceiver) -> dict[str, list[Span]]:
    """Return the spans of the one trace that there is, by name."""
    assert len({span.trace_id for span in collector.spans}) == 1
    by_name: dict[str, list[Span]] = {}
    for span in sorted(collector.spans, key=lambda span: span.start_ns):
        by_name.setdefault(span.name, []).append(span)
    return by_name


def check(workspace: Path, collector: OtlpReceiver) -> dict[str, list[Span]]:
    """See that each step stands below the one that led to it, and no text in any."""
    found = of_one(collector)
    assert set(found) == STEPS
    (receive,), (turn,), (delivery,) = found["receive"], found["turn"], found["delivery"]
    assert receive.parent_id == ""
    assert turn.parent_id == receive.span_id
    assert delivery.parent_id == turn.span_id
    assert {span.parent_id for span in (*found["model call"], *found["tool call"], *found["put"])} == {
        turn.span_id
    }
    assert [span.parent_id for span in found["send"]] == [delivery.span_id]
    assert [span.parent_id for span in found["queue wait"]] == [receive.span_id, turn.span_id]
    assert all(span.start_ns <= span.end_ns for span in collector.spans)
    assert b"what is here" not in collector.raw
    assert b"nothing there" not in collector.raw
    question = lines_of(workspace, f"telegram_{ADA}")[0]
    assert question["traceparent"].split("-")[1:3] == [receive.trace_id, turn.span_id]
    return found


async def test_one_trace_over_two_processes(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """The adapter's spans and those of the turn have one id; the broker's headers carry it both ways.

    A process with adapters alone serves health and metrics, where it is told to, and nothing else.
    """
    port = KeptPort()
    async with TelegramServer() as server, ModelServer() as model:
        model.script += [Reply(tool_calls=LOOK), Reply("nothing there")]
        with OtlpReceiver() as collector:
            config = {
                **with_model(model, **{"telemetry.endpoint": collector.url}),
                **with_telegram(server, stream=False),
                "metrics.port": port.port,
            }
            async with apart(tmp_path, broker, broker_name, config) as (session, channels):
                server.write(ADA, "what is here?")
                await server.said(ADA, lambda sent: sent.text == "nothing there")
                await channels.said("letter.delivered")
                url = f"http://127.0.0.1:{port.port}"
                here, there = samples(await scraped(url)), samples(await scraped(session.url))
                async with httpx.AsyncClient() as client:
                    codes = [
                        (await client.get(url + path)).status_code for path in ("/healthz", "/v1/sessions")
                    ]
                assert await session.stop() == 0
                assert await channels.stop() == 0
            found = check(tmp_path, collector)
    port.close()

    assert {span.role for name in ("receive", "delivery", "send") for span in found[name]} == {"channels"}
    assert codes == [200, 404]
    assert here["chat_gateway_deliveries_total"] == {("telegram", "delivered"): 1}
    assert "chat_gateway_lanes" not in here
    assert {labels[1] for labels in here["chat_gateway_build_info"]} == {"channels"}
    assert there["chat_gateway_turns_total"][("reply",)] == 1
    assert {span.role for name in ("turn", "model call", "put") for span in found[name]} == {"session"}


async def test_one_trace_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded queue keeps the headers over a restart; the SDK's own variable names the collector."""
    with OtlpReceiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with TelegramServer() as server, ModelServer() as model:
            model.away = True
            config: dict[str, Any] = {**with_model(model), **with_telegram(server, stream=False)}
            async with Daemon(tmp_path, config=config) as daemon:
                await server.until_confirmed(server.write(ADA, "what is here?"))
                await daemon.said("model.away")
                await daemon.stop()
            before = {span.name for span in collector.spans}
            model.away = False
            model.script += [Reply(tool_calls=LOOK), Reply("nothing there")]
            async with Daemon(tmp_path, config=config) as daemon:
                await server.said(ADA, lambda sent: sent.text == "nothing there")
                await daemon.said("letter.delivered")
                assert await daemon.stop() == 0
            found = of_one(collector)

    assert "receive" in before
    assert "turn" not in before
    assert set(found) >= STEPS
    assert len(found["turn"]) == 1
