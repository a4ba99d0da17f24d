"""What Prometheus reads of a gateway in one process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, with_telegram

LOOK = [("ls", '{"path": "."}')]
TOKEN = "correct-horse-battery-staple"
CAPS = {"limits.cost_per_day_usd": 5.0, "limits.tokens_per_day": 1_000_000}


async def scraped(url: str, token: str = "") -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(timeout=30, headers=headers) as client:
        answer = await client.get(f"{url}/metrics")
    assert answer.status_code == 200, answer.text
    return answer.text


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Read the samples by name, each by the values of its labels, in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def named_in_deploy() -> set[str]:
    """Every metric that dashboard and alert rules ask for."""
    files = (ROOT / "deploy" / "prometheus").glob("*")
    return {name for file in files for name in re.findall(r"\bchat_gateway_\w+", file.read_text())}


@guarantee("privacy", "Metrics name no chat, no person and no text.")
@guarantee("operation", "Each turn and each delivery writes one log line.")
async def test_all_in_one(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Turns, model, tools, deliveries and queues are counted; no chat, person or text is named anywhere."""
    async with TelegramServer() as server, ModelServer() as model:
        model.script += [Reply(tool_calls=LOOK), Reply("nothing there")]
        config = {**with_model(model), **with_telegram(server), **CAPS, "http.token": TOKEN, **queue}
        async with Daemon(tmp_path, config=config) as daemon:
            server.write(ADA, "what is here?")
            await server.said(ADA, lambda sent: sent.text == "nothing there")
            await daemon.said("letter.delivered")
            text = await scraped(daemon.url, TOKEN)
            async with httpx.AsyncClient() as client:
                refused = await client.get(f"{daemon.url}/metrics")
            assert "traceparent" not in lines_of(tmp_path, f"telegram_{ADA}")[0]
            log = [json.loads(line) for line in daemon.log.decode().splitlines() if line.startswith("{")]
    found = samples(text)

    assert refused.status_code == 401
    assert found["chat_gateway_turns_total"][("reply",)] == 1
    assert found["chat_gateway_turn_seconds_count"][()] == 1
    assert found["chat_gateway_turn_wait_seconds_count"][()] == 1
    assert found["chat_gateway_model_calls_total"][("openai/stub", "answered")] >= 2
    assert found["chat_gateway_tokens_total"][("prompt", "openai/stub")] > 0
    assert found["chat_gateway_model_first_token_seconds_count"][("openai/stub",)] >= 1
    assert found["chat_gateway_tool_calls_total"] == {("ended", "ls"): 1}
    assert found["chat_gateway_deliveries_total"][("telegram", "delivered")] == 1
    assert found["chat_gateway_platform_calls_total"][("telegram", "accepted")] >= 1
    assert found["chat_gateway_part_up"][("telegram",)] == 1
    assert found["chat_gateway_last_round_trip_seconds"][("telegram",)] < 60
    assert found["chat_gateway_limit_left"][("tokens_per_day",)] < 1_000_000
    assert found["chat_gateway_fsync_seconds_count"][()] > 0
    assert found["chat_gateway_queue_letters"][("inbound",)] == 0
    assert found["chat_gateway_lanes"] == {("running",): 0, ("waiting",): 0, ("asking",): 0}
    for secret in (str(ADA), "what is here", "nothing there", server.token, TOKEN):
        assert secret not in text
    _is_told_once(log)
    everything = set(found) | {name.removesuffix("_total") for name in found}
    assert named_in_deploy() - everything - RARE == set()


# Metrics of which nothing is there before something happens, or while nothing waits.
RARE = {
    "chat_gateway_redelivered_total",
    "chat_gateway_parked_letters",
    "chat_gateway_queue_oldest_seconds",
    # Of a model without a known price there is none.
    "chat_gateway_cost_usd_total",
}


def _is_told_once(log: list[dict[str, Any]]) -> None:
    """One line for the turn and one for the delivery, with what they took."""
    (turn,) = [line for line in log if line["event"].startswith("turn.")]
    (sent,) = [line for line in log if line["event"] == "letter.delivered"]
    assert (turn["event"], turn["result"], turn["attempt"], turn["calls"]) == ("turn.replied", "reply", 1, 2)
    assert turn["prompt"] > 0
    assert turn["took_s"] >= turn["model_s"] > 0
    assert turn["wait_s"] >= 0
    assert (sent["result"], sent["pieces"], sent["id"]) == ("delivered", 1, f"{turn['id']}#reply")
    assert sent["took_s"] > 0
    assert not any("what is here" in json.dumps(line) or "nothing there" in json.dumps(line) for line in log)
