"""The box of tools: what is called in it, with which arguments, and what every failure becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.errors import ToolError
from session.models.model import ToolCall, ToolSpec
from session.tools import Toolbox, ToolPlace, ToolResult, arguments_of, capped
from session.tools.files import Ls, Read, Write

ALL = ("read", "write", "ls", "odd")
BOX = Toolbox([Read(), Write(), Ls()])


class Odd:
    """A tool that fails in whatever way it is given."""

    repeatable = False
    spec = ToolSpec(
        "odd",
        "d",
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1},
                "how": {"type": "string", "enum": ["a", "b"]},
                "f": {"type": "number"},
            },
            "required": ["n"],
        },
    )

    def __init__(self, error: BaseException | None = None, text: str = "done") -> None:
        self.error = error
        self.text = text

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        if self.error is not None:
            raise self.error
        return self.text


async def odd(arguments: str, tool: Odd | None = None) -> ToolResult:
    return await Toolbox([tool or Odd()]).run(
        ToolCall("c", "odd", arguments), ToolPlace(Path("/x"), "k"), ALL
    )


async def test_unknown_and_forbidden_tools_are_an_error_result() -> None:
    """A tool that is not here, or not for this chat, is refused by name."""
    here = ToolPlace(Path("/x"), "k")

    for call, allowed in ((ToolCall("c", "fly", "{}"), ALL), (ToolCall("c", "ls", "{}"), ("read",))):
        result = await BOX.run(call, here, allowed)
        assert result.is_error
        assert call.name in result.text
    assert [spec.name for spec in BOX.specs(("ls", "read"), ToolPlace(Path("/x"), "k"))] == ["read", "ls"]
    assert BOX.get("fly") is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{oops", "not JSON"),
        ("[1]", "not a JSON object"),
        ("", "'n' is missing"),
        ("{}", "'n' is missing"),
        ('{"n": "1"}', "'n' is not of type integer"),
        ('{"n": true}', "'n' is not of type integer"),
        ('{"n": 0}', "'n' is below 1"),
        ('{"n": 1, "how": "c"}', "'how' is not one of a, b"),
        ('{"n": 1, "f": "x"}', "'f' is not of type number"),
        ("[" * 100_000, "not JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_result(arguments: str, said: str) -> None:
    """The model is told what is wrong with its arguments; the tool does not run."""
    result = await odd(arguments, Odd(RuntimeError("it ran")))

    assert result.is_error
    assert said in result.text


async def test_half_a_character_in_the_arguments_becomes_one_that_can_be_stored() -> None:
    """JSON allows the escape of half a character, which no file and no letter can hold."""
    spec = ToolSpec("t", "", {"type": "object", "properties": {"text": {"type": "string"}}})
    call = ToolCall("c", "t", r'{"text": "a \ud83d \ud83d\ude00", "more": {"\ud83d": ["\udc00"]}}')

    assert arguments_of(call, spec) == {"text": "a \ufffd \U0001f600", "more": {"\ufffd": ["\ufffd"]}}


async def test_failures_become_error_results() -> None:
    """A tool's own error is told in its words, an unexpected one by its kind alone."""
    assert await odd('{"n": 1}', Odd(ToolError("too dark"))) == ToolResult("error: too dark", is_error=True)
    surprise = await odd('{"n": 1}', Odd(RuntimeError("password 123")))
    assert surprise == ToolResult("error: the tool failed (RuntimeError)", is_error=True)
    assert await odd('{"n": 1, "f": 2}') == ToolResult("done")


async def test_cancellation_is_not_a_result() -> None:
    """A cancelled tool ends its turn, it does not answer."""
    with pytest.raises(asyncio.CancelledError):
        await odd('{"n": 1}', Odd(asyncio.CancelledError()))


@given(st.text(max_size=200), st.integers(100, 300))
def test_capped_text_fits(text: str, limit: int) -> None:
    """A capped text fits its limit in bytes, is valid, and says that it was cut."""
    short = capped(text, limit)

    data = text.encode("utf-8", "replace")
    assert len(short.encode()) <= limit
    assert (short == data.decode()) or "[cut:" in short


def test_which_tools_may_run_again() -> None:
    """Reading may be repeated after a crash, writing may not."""
    assert [tool.repeatable for tool in (Read(), Ls(), Write())] == [True, True, False]
