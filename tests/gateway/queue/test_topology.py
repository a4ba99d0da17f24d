"""Slots, partitions and names are what other programs rely on."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.queue.mailbox import INBOUND
from gateway.queue.rabbitmq.topology import (
    Names,
    partition_of,
    preferred_kind,
    queue_arguments,
    read_record,
    slot_route,
    slots_of,
)

PARTITIONS = st.integers(1, 256)


@given(PARTITIONS)
def test_every_slot_has_one_partition(partitions: int) -> None:
    """The slots of all partitions are the 256 slots, each once, and agree with the contract's formula."""
    listed = [(slot, number) for number in range(partitions) for slot in slots_of(number, partitions)]
    assert listed == [(slot, slot * partitions // 256) for slot in range(256)]
    assert all(partition_of(slot, partitions) == number for slot, number in listed)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_inbound_route_is_the_slot_of_the_key(key: str) -> None:
    """A key's routing key is crc32 of its UTF-8 modulo 256, three digits, whatever the partitions."""
    expected = f"{crc32(key.encode()) % 256:03d}"
    assert Names("chat", 16).route(INBOUND, key) == ("chat.inbound", expected)
    assert Names("chat", 3).route(INBOUND, key) == ("chat.inbound", expected)


def test_names_are_those_of_the_contract() -> None:
    """Names carry the prefix, and partitions two digits, or three when there are more than 100."""
    names = Names("chat", 16)
    assert names.queues_of(INBOUND)[3] == "chat.inbound.16.03"
    assert Names("bot", 101).inbound_queue(7) == "bot.inbound.101.007"
    assert Names("bot", 100).inbound_queue(7) == "bot.inbound.100.07"
    assert names.queues_of("outbound.telegram") == ["chat.outbound.telegram"]
    assert names.route("outbound.telegram", "telegram:1") == ("chat.outbound", "telegram")
    assert (names.parked, names.parked_lock) == ("chat.parked", "chat.parked.lock")
    assert (names.topology, names.topology_lock) == ("chat.topology", "chat.topology.lock")
    assert (names.control, names.events) == ("chat.control", "chat.events")
    assert slot_route(7) == "007"


def test_arguments_are_those_of_the_contract() -> None:
    """Quorum queues have a delivery limit out of reach; no queue has a length limit, TTL or dead letters."""
    assert queue_arguments("classic") == {"x-queue-type": "classic"}
    assert queue_arguments("quorum", single_active=True) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-single-active-consumer": True,
    }


@pytest.mark.parametrize(
    ("version", "kind"),
    [("3.10.8", "classic"), ("3.13.7", "classic"), ("4.0.0", "quorum"), ("10.1", "quorum"), ("", "classic")],
)
def test_auto_follows_the_version(version: str, kind: str) -> None:
    """From 4.0 on new queues are quorum queues, before they are classic."""
    assert preferred_kind(version) == kind


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"16",
        b"{}",
        b"\xff",
        b'{"v":2,"partitions":4,"slots":256}',
        b'{"v":1,"partitions":"4","slots":256}',
        pytest.param(b"[" * 100_000, id="lists in lists"),
    ],
)
def test_foreign_record_is_not_understood(body: bytes) -> None:
    """A record that is damaged or of another version is no record of ours."""
    assert read_record(body) is None


def test_box_of_a_queue() -> None:
    """The box of a parked letter is told from the queue that it came from."""
    names = Names("chat", 16)
    assert names.box_of("chat.inbound.16.03") == INBOUND
    assert names.box_of("chat.outbound.telegram") == "outbound.telegram"


def test_way_back_without_a_key() -> None:
    """A letter without a readable key returns to its old partition, also from another partition count."""
    names = Names("chat", 16)
    assert names.way_back("chat.inbound.16.03", None) == ("chat.inbound", slot_route(slots_of(3, 16)[0]))
    assert names.way_back("chat.inbound.8.03", None) == ("chat.inbound", slot_route(slots_of(3, 8)[0]))
    assert names.way_back("nonsense", None) == ("chat.inbound", "000")
    assert names.way_back("chat.outbound.web", None) == ("chat.outbound", "web")
    assert names.way_back("chat.inbound.16.03", "web:1") == names.route(INBOUND, "web:1")
