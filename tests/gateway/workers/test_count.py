"""How many workers a gateway has, and what it says where it has none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric

from gateway.config.load import load, load_values, of_values
from gateway.config.settings import Settings
from gateway.errors import ConfigError
from gateway.workers.line import encoded
from gateway.workers.merging import lasting, merged, packed
from gateway.workers.workers import ALONE, count, remarks


def settings(tmp_path: Path, **variables: str) -> Settings:
    return load(None, tmp_path, {f"CHAT_GATEWAY_{name}": value for name, value in variables.items()})


BROKER = {"BROKER__URL": "amqp://guest:guest@127.0.0.1/"}


@pytest.mark.parametrize(
    ("configured", "asked", "number"),
    [("1", None, 0), ("3", None, 3), ("3", 1, 0), ("1", 2, 2), ("0", None, len(os.sched_getaffinity(0)))],
)
def test_the_command_line_goes_before_the_configuration(
    tmp_path: Path, configured: str, asked: int | None, number: int
) -> None:
    """0 is one a core; one alone needs no second process."""
    found = settings(tmp_path, **BROKER, LIMITS__WORKERS=configured)

    assert count(found, "all", asked) == (0 if number == 1 else number)
    assert count(found, "session", asked) == count(found, "all", asked)


def test_adapters_alone_have_none_and_refuse_them(tmp_path: Path) -> None:
    """The same configuration may serve both roles; what was asked for by hand is refused."""
    found = settings(tmp_path, **BROKER, LIMITS__WORKERS="4")

    assert count(found, "channels") == 0
    with pytest.raises(ConfigError, match="--workers: a process of role channels runs no conversations"):
        count(found, "channels", 2)


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    """The embedded queue is one process' own; more workers than partitions have nothing to do."""
    embedded = settings(tmp_path, LIMITS__WORKERS="4")
    few = settings(tmp_path, **BROKER, BROKER__PARTITIONS="2")

    assert (count(embedded, "all"), remarks(embedded, "all")) == (0, [ALONE])
    assert remarks(settings(tmp_path), "all") == []
    assert remarks(few, "all", 3) == ["workers: 3 share 2 partitions, so that 1 have none"]


def test_a_worker_has_the_very_configuration_of_its_gateway(tmp_path: Path) -> None:
    """Secrets and all, as it goes over the line, whatever becomes of the file."""
    (tmp_path / "c.toml").write_text(
        'timezone = "Europe/Berlin"\n[http]\ntoken = "a-secret-of-some-length"\n[limits]\ncollect_s = 1\n'
        "[people]\nada = ['telegram:1']\n[agents.cook]\n[agents.cook.model]\nname = 'echo'\n"
        '[mcp.files]\ncommand = ["files"]\n'
    )
    read, values = load_values(tmp_path / "c.toml", tmp_path / "w", {})
    sent: dict[str, Any] = json.loads(encoded({"settings": dict(values)}))["settings"]

    # A worker asks for no name of the file.
    read.read_from(None)
    assert of_values(sent) == read
    assert of_values(sent).http.token.get_secret_value() == "a-secret-of-some-length"


def families(turns: int, oldest: float = 0.0, left: float = 10.0) -> list[Metric]:
    registry = CollectorRegistry()
    Counter("chat_gateway_turns", "Turns.", ["result"], registry=registry).labels("reply").inc(turns)
    Gauge("chat_gateway_lane_letters", "Letters.", registry=registry).set(turns)
    Gauge("chat_gateway_partition_oldest_seconds", "Age.", ["partition"], registry=registry).labels("00").set(
        oldest
    )
    Gauge("chat_gateway_limit_left", "Left.", ["limit"], registry=registry).labels("cost").set(left)
    Histogram("chat_gateway_turn_seconds", "Time.", buckets=(1.0, 2.0), registry=registry).observe(1.5)
    Gauge("process_open_fds", "Descriptors.", registry=registry).set(7)
    return list(registry.collect())


def values(found: list[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(s.labels.items())): s.value for each in found for s in each.samples}


def test_counts_are_added_and_ages_are_not() -> None:
    """The sum of what was counted, the oldest age, the least that is left; each process under its number."""
    found = values(
        merged(families(1, 3.0, 10.0), [(1, packed(families(2, 9.0, 4.0))), (2, packed(families(4)))])
    )

    assert found["chat_gateway_turns_total", (("result", "reply"),)] == 7
    assert found["chat_gateway_lane_letters", ()] == 7
    assert found["chat_gateway_partition_oldest_seconds", (("partition", "00"),)] == 9.0
    assert found["chat_gateway_limit_left", (("limit", "cost"),)] == 4.0
    assert found["chat_gateway_turn_seconds_bucket", (("le", "2.0"),)] == 3
    assert found["chat_gateway_turn_seconds_bucket", (("le", "+Inf"),)] == 3
    assert [found["process_open_fds", label] for label in ((), (("worker", "1"),), (("worker", "2"),))] == [
        7
    ] * 3


def test_what_an_ended_process_counted_stays_and_what_it_held_does_not() -> None:
    """A counter never goes back when a worker is replaced; its letters are gone with it."""
    found = values(merged(families(1), [(1, packed(families(2)))], [lasting(packed(families(10)))]))

    assert found["chat_gateway_turns_total", (("result", "reply"),)] == 13
    assert found["chat_gateway_lane_letters", ()] == 3
    assert ("process_open_fds", (("worker", "0"),)) not in found


def test_a_lone_surrogate_and_an_infinity_go_over_the_line() -> None:
    """A key may hold what UTF-8 has not, and a histogram ends in infinity."""
    assert encoded({"key": "web:\ud800", "le": float("inf")}).isascii()
