"""An answer that is put together from what a server says, whole or piece by piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from session.models.assembly import Assembly
from session.models.llm import LiteLLM
from session.models.model import OnDelta
from session.testing import prompt
from tests.support.model_server import ModelServer, Reply


def piece(text: str) -> Any:
    delta = SimpleNamespace(content=text)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)])


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a \ud83d", "\ude00 b"], ["a ", "😀 b"]),
        (["\ud83d", "\ude00"], ["", "😀"]),
        (["a\ud83d", "b"], ["a", "\ufffdb"]),
        (["a", "\ude00b"], ["a", "\ufffdb"]),
        (["a\ud83d", "\ud83d", "\ude00"], ["a", "\ufffd", "😀"]),
        (["😀", "ü"], ["😀", "ü"]),
    ],
)
def test_a_character_that_was_cut_in_two_is_shown_whole(pieces: list[str], shown: list[str]) -> None:
    answer = Assembly()

    assert ascii([answer.add(piece(text)) for text in pieces]) == ascii(shown)
    assert ascii(answer.answer(0.0).text) == ascii("".join(shown))


def test_half_a_character_at_the_end_is_told() -> None:
    answer = Assembly()

    assert ascii(answer.add(piece("a\ud83d"))) == ascii("a")
    assert ascii(answer.answer(0.0).text) == ascii("a\ufffd")


@pytest.mark.parametrize("on_delta", [None, lambda _: None], ids=["whole", "streamed"])
async def test_half_a_character_becomes_one_that_can_be_sent(
    llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None
) -> None:
    """JSON may hold it, and no queue does: the answer would be lost where it is sent."""
    said = Reply(text="so \ud83d it", reasoning="h\udc00m", tool_calls=[("ls\ud83d", '{"a": "\ud83d"}')])
    server.script.append(said)

    answer = await llm.ask(prompt("q"), on_delta)

    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    assert ascii((answer.text, answer.extra)) == ascii(("so \ufffd it", {"reasoning_content": "h\ufffdm"}))
    assert ascii(calls) == ascii([("ls\ufffd", '{"a": "\ufffd"}')])
