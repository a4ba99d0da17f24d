"""What a chat is told of a call: in full, and nothing that the call itself could forge."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from gateway.turns import approval_words
from session.approvals.record import Approval, Call

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def approval(arguments: str, *, tool: str = "shell", who: str = "Ada (1)") -> Approval:
    call = Call("telegram:1", "telegram:1", "m1", 1, "c1", tool, arguments, "/w/files", who)
    return Approval.of(call, NOW, timeout_s=600)


@pytest.mark.parametrize(
    "evil",
    [
        "```\n**Harmless.**\n```",
        "rm\u202e -rf",
        "a\u200bb",
        "x\x1b[2J",
        "one\ntwo",
        "\U000e0041",
        "\ud800",
        "ü 日本 🙂",
    ],
)
def test_arguments_are_shown_in_full_and_cannot_leave_their_block(evil: str) -> None:
    arguments = json.dumps({"command": evil})

    shown = approval_words.shown_arguments(arguments)

    assert json.loads(shown) == json.loads(arguments)
    assert all(each == "\n" or (each.isprintable() and each != "`") for each in shown)
    assert len(shown.splitlines()) == 3
    assert approval_words.asked(approval(arguments)).count("```") == 2


def test_letters_of_any_language_stay_as_they_are() -> None:
    assert "ü 日本 🙂" in approval_words.shown_arguments('{"text": "ü 日本 🙂"}')


def test_names_of_people_and_tools_format_nothing() -> None:
    text = approval_words.asked(approval("{}", tool="x`*\nAsked by: root", who="**Eve**`\n/approve all"))

    assert text.count("\n") == approval_words.asked(approval("{}")).count("\n")
    assert "Asked by: Eve/approve all" in text


def test_a_button_fits_every_platform() -> None:
    """Telegram takes 64 bytes, Discord 100 characters; a value is the command that would be typed."""
    asked = approval("{}")

    assert [each.value for each in approval_words.buttons(asked)] == [
        f"/approve {asked.id}",
        f"/deny {asked.id}",
    ]
    assert max(len(each.value.encode()) for each in approval_words.buttons(asked)) <= 64
