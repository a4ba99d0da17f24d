"""``make chaos``: a few kills over the embedded queue, what it prints, and options that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import aio_pika
import pytest

from tests.support.broker import Broker
from tests.support.chaos import PATIENCE_S, chaos


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_few_kills_are_survived_and_told(tmp_path: Path) -> None:
    """Each guarantee is put to the test; nothing is broken, nothing stays but what was asked to be kept."""
    done = chaos("--kills", "6", "--seed", "11", "--json", "--keep", folder=tmp_path)

    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [each["name"] for each in told["guarantees"]] == [f"G{number}" for number in range(1, 8)]
    assert [each["broken"] for each in told["guarantees"]] == [[]] * 7
    assert (told["seed"], told["broker"], told["daemons"], told["kills"]) == (11, "embedded", 1, 6)
    assert sum(told["deaths"].values()) == 6
    assert told["model_calls"] > 0 < told["model_calls_without_faults"]
    assert (told["platform"], told["workers"], told["platform_messages"] > 0) == ("telegram", 0, True)
    assert all(repeat["cause"] for repeat in told["repeats"])
    kept = Path(told["folder"]) / "seed-11"
    records = json.loads((kept / "records.json").read_text())
    assert all(update["handed"] and update["confirmed"] for update in records["updates"])
    assert {chat for chat, messages in records["sent"].items() if messages} >= {"eve", "finn"}
    assert "--- d0.7" in (kept / "d0.log").read_text()
    assert done.stderr.startswith("6 kills over the embedded queue, seed 11\nseed 11: 6 kills")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--daemons", "3"), "--daemons 3: the embedded queue serves one daemon"),
        (("--workers", "2"), "--workers needs one gateway over RabbitMQ"),
        (("--url", "amqp://127.0.0.1:1/"), "the broker does not let us in"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_made(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = chaos(*words, folder=tmp_path)

    assert done.returncode != 0
    assert said in done.stderr
    assert list(tmp_path.glob("chat-gateway-chaos-*")) == []


async def test_a_broker_that_holds_queues_of_a_gateway_is_refused(broker: Broker, tmp_path: Path) -> None:
    url = broker.vhost("lived-in")
    async with await aio_pika.connect(url) as connection:
        await (await connection.channel()).declare_queue("chat.topology", durable=True)

    done = chaos("--url", url, folder=tmp_path)

    assert done.returncode == 1
    assert "error: the broker holds queues of a gateway whose broker.name is chat" in done.stderr
    assert "try: a virtual host of its own: rabbitmqctl add_vhost chaos" in done.stderr
