"""A newer version's file is refused by one error, whichever package meets it."""

from __future__ import annotations

import pytest

import durable
from channels.errors import ChannelError, NewerFile
from gateway.errors import GatewayError, NewerState
from session.errors import NewerFormat, SessionError, StoreError


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
def test_what_is_no_object_is_damaged(data: bytes) -> None:
    with pytest.raises(durable.Damaged):
        durable.decode_state(data, 1, "x.json")


def test_an_older_or_missing_version_is_read() -> None:
    assert durable.decode_state(b'{"v": 1, "a": 2}', 3, "x.json") == {"v": 1, "a": 2}
    assert durable.decode_state(b'{"a": 2}', 3, "x.json") == {"a": 2}
