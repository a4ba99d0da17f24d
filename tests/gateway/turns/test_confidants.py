"""Why the model is away is for people whom the operator let in, where nobody else reads along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound, Sender
from channels.pairing import Pairing
from gateway.config.settings import Settings
from gateway.turns.confidants import Confidants
from gateway.turns.policy import wait_words
from session.errors import AwayCause, ModelAway


def letter(key: str, sender: str = "", **fields: Any) -> Inbound:
    channel, _, chat_id = key.partition(":")
    who = Sender(id=sender, name="", username="")
    return Inbound(v=1, id="m", key=key, channel=channel, chat_id=chat_id, text="hi", sender=who, **fields)


@pytest.mark.parametrize(
    ("inbound", "confided"),
    [
        (letter("telegram:7", "7"), True),
        (letter("telegram:8", "8"), True),
        (letter("telegram:9", "9"), False),
        (letter("telegram:-100", "7", group=True), False),
        (letter("discord:7", "7"), False),
        (letter("web:a"), True),
        (letter("cli:direct"), True),
        (letter("cron:job", answer_to="telegram:-100"), False),
        (letter("web:a", answer_to="telegram:-100"), False),
        (letter("foreign:ada", "7"), False),
    ],
)
def test_who_may_know(tmp_path: Path, inbound: Inbound, confided: bool) -> None:
    """Listed and approved people in their direct chat, and clients of our own; nobody else."""
    telegram = {"allow_from": ["7"], "direct": "open"}
    settings = Settings.model_validate({"workspace": tmp_path, "channels": {"telegram": telegram}})
    Pairing(settings.state).admit("telegram", "8", kind="person", name="Ada")

    assert Confidants(settings)(inbound) is confided


def test_unreadable_approvals_confide_nothing(tmp_path: Path) -> None:
    """A doubt is a no."""
    settings = Settings.model_validate({"workspace": tmp_path})
    settings.state.mkdir()
    (settings.state / "pairing.json").write_text("{")

    assert Confidants(settings)(letter("telegram:8", "8")) is False


@pytest.mark.parametrize(
    ("cause", "word"),
    [
        ("credentials", "credentials"),
        ("quota", "quota"),
        ("unreachable", "unreachable"),
        ("rate_limit", "rate limit"),
    ],
)
def test_the_cause_is_one_word(cause: AwayCause, word: str) -> None:
    """Whoever may know reads it, others do not; nothing else differs."""
    error = ModelAway("secret words of the provider", cause=cause)

    told, plain = wait_words(error, named=True), wait_words(error)

    assert told == ("model_away", plain[1].replace(" right now.", f" right now ({word})."))
    assert word not in plain[1]
    assert "secret" not in told[1]
