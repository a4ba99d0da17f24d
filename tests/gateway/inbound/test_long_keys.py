"""A key that no queue can carry is refused in clear words, wherever one can be typed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from channels.cron.jobs import BadJob, new_row
from channels.cron.schedule import asked
from channels.message import MAX_KEY_BYTES
from gateway.service.client_message import NoAddress, inbound

LONG = "web:" + "ü" * (MAX_KEY_BYTES // 2)


def test_a_client_cannot_hand_in_under_a_key_that_is_too_long() -> None:
    with pytest.raises(NoAddress, match="key is over 1024 bytes") as refusal:
        inbound(LONG, "hello")

    assert "1024 bytes" in refusal.value.hint


@pytest.mark.parametrize("key", ["web", "web:", "Web:a"])
def test_a_client_cannot_hand_in_under_what_is_no_key(key: str) -> None:
    with pytest.raises(NoAddress, match="channel:chat_id"):
        inbound(key, "hello")


def test_a_job_cannot_answer_to_a_key_that_is_too_long() -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    hourly = asked(every="1h", expr=None, tz=None, at=None, zone=UTC, now=now)

    with pytest.raises(BadJob, match="too long"):
        new_row(hourly, "hello", at=now + timedelta(hours=1), to=LONG)


@pytest.mark.parametrize(("key", "id_"), [("web:\ud800", "one"), ("web:ada", "\udfff")])
def test_half_a_character_is_refused_in_words(key: str, id_: str) -> None:
    """No file, queue or header can hold it, and whoever sent it learns why."""
    with pytest.raises(NoAddress, match="half of a surrogate pair"):
        inbound(key, "hello", id_)
