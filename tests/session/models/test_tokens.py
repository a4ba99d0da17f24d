"""What a request is taken for without a tokenizer."""

from __future__ import annotations

import json
from math import ceil

import pytest

from session.models.model import ToolSpec
from session.models.tokens import IMAGE_CHARS, chars_of, estimate_messages, estimate_tools

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


@pytest.mark.parametrize(
    ("message", "chars"),
    [
        ({"role": "user", "content": "hello"}, 5),
        ({"role": "user", "content": ""}, 0),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, 4 + 9),
        ({"role": "assistant", "content": "I look", "tool_calls": [CALL, CALL]}, 6 + 2 * (4 + 9)),
        ({"role": "assistant", "content": "none", "tool_calls": []}, 4),
        (
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]},
            3 + IMAGE_CHARS,
        ),
        ({"role": "tool", "tool_call_id": "c1", "content": "seen"}, 4),
        ({"role": "assistant"}, 0),
        # Another program's, or edited by hand.
        ({"role": "assistant", "content": "none", "tool_calls": 7}, 4),
        ({"role": "assistant", "content": "none", "tool_calls": {"id": "c1"}}, 4),
        ({"role": "assistant", "content": "none", "tool_calls": "c1"}, 4),
        ({"role": "assistant", "content": "none", "tool_calls": [7, {"function": 7}]}, 4),
    ],
)
def test_what_a_model_reads_of_a_message_is_counted(message: dict[str, object], chars: int) -> None:
    assert chars_of(message) == chars
    assert estimate_messages([message]) == ceil(chars / 4)
    assert estimate_messages([message, message], chars_per_token=3.0) == 2 * ceil(chars / 3)


def test_a_tool_takes_its_name_its_words_and_its_schema() -> None:
    """Which is written out once: servers may offer hundreds, and each request is estimated."""
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    tool = ToolSpec("look", "Look at a thing.", schema)
    chars = 4 + 16 + len(json.dumps(schema))

    assert estimate_tools([tool, tool]) == 2 * ceil(chars / 4)
    assert "chars" in vars(tool)
    assert tool == ToolSpec("look", "Look at a thing.", schema)
