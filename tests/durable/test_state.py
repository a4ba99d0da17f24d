"""The small parts: bounded dicts, chains of causes, waits for the first of several, versions of files."""

from __future__ import annotations

import asyncio

import pytest

import durable
from channels.errors import ChannelError, NewerFile
from durable import BoundedDict, causes, first_of
from gateway.errors import GatewayError, NewerState
from session.errors import NewerFormat, SessionError, StoreError

WITHIN_S = 10.0


def test_beyond_its_size_the_oldest_item_goes() -> None:
    """One that is put in anew, or used, is the youngest; ``get`` changes no age."""
    items, used = BoundedDict[str, int](2), BoundedDict[str, int](2)
    for each in (items, used):
        each["a"], each["b"], each["a"] = 1, 2, 3

    assert (items.get("b"), used.use("b"), used.use("z")) == (2, 2, None)
    items["c"] = used["c"] = 4

    assert (dict(items), dict(used)) == ({"a": 3, "c": 4}, {"b": 2, "c": 4})


def test_causes_are_told_outermost_first_and_a_ring_of_them_has_an_end() -> None:
    """An AMQP client leaves rings whose connection ended while it was opened."""
    first, second, third = ValueError("first"), OSError("second"), KeyError("third")
    first.__cause__, first.__context__, second.__context__ = second, KeyError("not its cause"), third

    assert list(causes(first)) == [first, second, third]
    second.__cause__ = first
    assert list(causes(first)) == [first, second]


async def test_the_first_event_ends_the_wait_and_the_others_are_cancelled() -> None:
    """So does a time that is over, or below zero; no task is left but the test's own."""
    first, never = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(first.set)

    async with asyncio.timeout(WITHIN_S):
        await first_of(never.wait(), first.wait())
        for timeout_s in (0.01, 0.0, -1.0):
            await first_of(never.wait(), timeout_s=timeout_s)
        await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_who_is_cancelled_leaves_no_wait_behind() -> None:
    waiting = asyncio.create_task(first_of(asyncio.Event().wait()))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0)

    assert waiting.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kind", [NewerFile, NewerFormat, NewerState])
def test_what_a_newer_version_wrote_is_refused_with_a_cure(kind: type[durable.NewerVersion]) -> None:
    with pytest.raises(durable.NewerVersion, match=r"x\.json .*newer version.*: version 2") as refused:
        durable.decode_state(b'{"v": 2}', 1, "x.json", error=kind)

    assert type(refused.value) is kind
    assert "install that version of chat-gateway" in refused.value.hint


def test_the_errors_of_all_packages_carry_a_hint() -> None:
    for kind in (ChannelError, SessionError, StoreError, GatewayError):
        error = kind("it broke", hint="mend it")
        assert isinstance(error, durable.HintedError)
        assert (str(error), error.hint) == ("it broke", "mend it")


@pytest.mark.parametrize("data", [b"", b'{"v": 1', b"[]", b"null", b"[" * 100_000])
def test_what_is_no_object_is_damaged_and_an_older_version_is_read(data: bytes) -> None:
    with pytest.raises(durable.Damaged):
        durable.decode_state(data, 1, "x.json")

    assert durable.decode_state(b'{"v": 1, "a": 2}', 3, "x.json") == {"v": 1, "a": 2}
    assert durable.decode_state(b'{"a": 2}', 3, "x.json") == {"a": 2}
