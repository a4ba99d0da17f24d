"""What /metrics says of the lines of chats: how many, what they do, how old the oldest of each partition is."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.queue.mailbox import INBOUND, Post
from session.transcript.key import SLOTS, slot_of
from tests.gateway.http_place import open_place
from tests.support.foreign import inbound
from tests.support.until import until

OLD = {"received_at": "2026-01-01T00:00:00.000000+00:00"}
# As another program may spell it.
ODD = {"received_at": "2026-01-01T00:00:00Z"}


async def test_the_oldest_of_each_partition_is_found(tmp_path: Path) -> None:
    """By the times of our own spelling; others count from when they came out of the queue."""
    async with open_place(tmp_path) as place:
        place.gate()
        times = {"web:a": OLD, "web:b": ODD, "web:c": {}, "web:d": {}}
        for key, more in times.items():
            await place.application.mailbox.put(
                Post(INBOUND, key, f"{key}#1", inbound(key, "1", "hi", **more))
            )

        async def scraped() -> dict[str, dict[tuple[str, ...], float]] | None:
            answer = await place.http.get("/metrics")
            found: dict[str, dict[tuple[str, ...], float]] = {}
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
            return found if found["chat_gateway_lane_letters"][()] == len(times) else None

        found = await until(scraped)
        partitions = place.application.settings.broker.partitions

    ages = found["chat_gateway_partition_oldest_seconds"]
    waiting = {key: f"{slot_of(key) * partitions // SLOTS:02d}" for key in times}
    assert len(set(waiting.values())) == len(times)
    assert {name for (name,), age in ages.items() if age > 0} == set(waiting.values())
    assert len(ages) == partitions
    years = {key for key, name in waiting.items() if ages[(name,)] > 86_400}
    assert years == {"web:a"}
    assert sum(found["chat_gateway_lanes"].values()) == len(times)
