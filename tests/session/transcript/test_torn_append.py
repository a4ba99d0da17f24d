"""An append that a power cut tore: nothing of its turn is believed behind the hole."""

from __future__ import annotations

import json
import random
import stat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.transcript.transcript import parse
from tests.disk.model import Disk, Fate, Write
from tests.support.guarantee import guarantee

pytestmark = guarantee("storage", "A line torn by a power cut never becomes part of the turn before it.")

HEAD: dict[str, Any] = {"_type": "metadata", "key": "cli:x", "metadata": {}, "last_consolidated": 0}


def line(role: str, id_: str, **more: Any) -> bytes:
    return json.dumps({"role": role, "content": id_, "message_id": id_, **more}).encode() + b"\n"


def turn(id_: str, size: int = 0) -> list[bytes]:
    call = {"tool_calls": [{"id": f"c-{id_}", "function": {"name": "ls", "arguments": "{}"}}]}
    return [
        line("user", id_, text="x" * size),
        line("assistant", id_, **call),
        line("tool", id_, tool_call_id=f"c-{id_}"),
        line("assistant", id_, final=True),
    ]


SOUND = json.dumps(HEAD).encode() + b"\n" + b"".join(turn("a"))


def ids(data: bytes) -> list[tuple[str, str]]:
    return [(one["role"], one["message_id"]) for one in map(json.loads, parse(data, stem="cli_x").messages)]


def test_an_answer_whose_question_is_lost_is_none() -> None:
    question, *rest = turn("b")

    found = parse(SOUND + bytes(len(question)) + b"".join(rest), stem="cli_x")

    assert [json.loads(raw)["message_id"] for raw in found.messages] == ["a"] * 4
    assert found.index.find("b") is None
    assert found.keep == len(SOUND) and found.torn and not found.needs_copy


def test_lines_of_several_turns_behind_a_hole_are_kept() -> None:
    """No cut did that: what can be had of it is not thrown away."""
    data = SOUND + bytes(100) + b"\n" + b"".join([*turn("b"), *turn("c")])

    assert [id_ for _, id_ in ids(data)] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4


@pytest.mark.parametrize("part_of", [["b"], {"b": 1}, 7, None])
def test_a_field_of_a_wrong_type_behind_a_hole_is_none(part_of: Any) -> None:
    """The line is of the turn that its id names, and the conversation can be opened."""
    alone = SOUND + bytes(100) + b"\n" + line("user", "b", part_of=part_of)
    of_two = alone + b"".join(turn("c"))

    assert [id_ for _, id_ in ids(alone)] == ["a"] * 4
    assert [id_ for _, id_ in ids(of_two)] == ["a"] * 4 + ["b"] + ["c"] * 4


@given(st.integers(0, 10**6), st.integers(0, 6000), st.integers(1, 4))
def test_whatever_a_cut_leaves_of_an_append_is_its_beginning(seed: int, size: int, count: int) -> None:
    """Each line that is believed has all the lines of its turn before it."""
    disk = Disk()
    node = disk.make("/t", stat.S_IFREG | 0o600)
    disk.write(node, Write(0, SOUND))
    for one in (node, disk.find("/")):
        disk.sync(one)
    lines = turn("b", size)[:count]
    disk.write(node, Write(len(SOUND), b"".join(lines)))

    left = bytes(disk.cut(Fate(random.Random(seed), torn=True)).find("/t").content)

    roles = ["user", "assistant", "tool", "assistant"]
    assert ids(left)[:4] == [(role, "a") for role in roles]
    assert ids(left)[4:] in [[(role, "b") for role in roles[:kept]] for kept in range(count + 1)]
