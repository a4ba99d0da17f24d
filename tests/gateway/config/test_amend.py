"""A person's configuration is changed in the keys that are meant, and in nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gateway.config.edit import amend, amended
from gateway.errors import GatewayError

MINE = """\
# mine
[model]
name = "echo"  # for now
api_key = "inline"

# the bot
[channels.telegram]
poll_timeout_s = 5 # seconds
"""


def test_values_change_and_comments_stay() -> None:
    new = amended(
        MINE,
        {
            ("model", "name"): "openai/x",
            ("model", "api_key_file"): "secrets/key",
            ("channels", "telegram", "enabled"): True,
            ("channels", "discord", "enabled"): True,
        },
        [("model", "api_key"), ("channels", "telegram", "token")],
    )

    assert tomllib.loads(new) == {
        "model": {"name": "openai/x", "api_key_file": "secrets/key"},
        "channels": {"telegram": {"poll_timeout_s": 5, "enabled": True}, "discord": {"enabled": True}},
    }
    assert new.startswith("# mine\n[model]\n")
    assert "  # for now\n" in new
    assert "\n# the bot\n[channels.telegram]\n" in new
    assert "poll_timeout_s = 5 # seconds\n" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", '[memory]\nscope = "w"\n'),
        ("# nothing", '# nothing\n\n[memory]\nscope = "w"'),
        ("a = 1\n", 'a = 1\n\n[memory]\nscope = "w"\n'),
        ("[memory]", '[memory]\nscope = "w"'),
        ("a = 1\r\n[memory]\r\nb = 2\r\n", 'a = 1\r\n[memory]\r\nscope = "w"\r\nb = 2\r\n'),
        ('[ "memory" ] # x\n[b]\n', '[ "memory" ] # x\nscope = "w"\n[b]\n'),
        ("memory.b = 2\n[c]\n", 'memory.scope = "w"\nmemory.b = 2\n[c]\n'),
        ('a = """\n[memory]\n"""\n', 'a = """\n[memory]\n"""\n\n[memory]\nscope = "w"\n'),
        ('a = """\n[memory]\n"""\n[memory]\n', 'a = """\n[memory]\n"""\n[memory]\nscope = "w"\n'),
        ("a = '\u2028\x85'\n[memory]\n", "a = '\u2028\x85'\n[memory]\nscope = \"w\"\n"),
        ("memory = { window = 60 }\n", 'memory = { window = 60, scope = "w"}\n'),
        ("[memory.sub]\nscope = 1\n", '[memory]\nscope = "w"\n[memory.sub]\nscope = 1\n'),
    ],
)
def test_a_key_is_put_in_where_it_belongs(old: str, new: str) -> None:
    """Everything else keeps its bytes."""
    assert amended(old, {("memory", "scope"): "w"}) == new


@pytest.mark.parametrize("text", ["model = 5\n", "[[model]]\n"])
def test_what_cannot_be_changed_is_said_and_left(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)

    with pytest.raises(GatewayError, match=r"model\.name"):
        amend(file, {("model", "name"): "x"})

    assert file.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
