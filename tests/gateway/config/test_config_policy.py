"""``[tools.policy]``: which tool may run, by person, chat, channel, and for everybody."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.app.approvals import build_gate
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.errors import ConfigError
from session.tools import ToolPlace
from tests.gateway.cli_place import Ran

WRITTEN = """
[people]
ada = ["telegram:1"]
[tools.policy]
shell = "ask"
"mcp.files.*" = "deny"
"*" = "allow"
[tools.policy.people.ada]
shell = "allow"
[tools.policy.chats."telegram:-100123"]
"*" = "deny"
[tools.policy.channels.discord]
"mcp.files.read" = "ask"
"""


def read(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "c.toml").write_text(text)
    return load(folder / "c.toml", folder / "w", environ, tables={})


def test_the_tables_are_read(tmp_path: Path) -> None:
    gate = build_gate(read(tmp_path, WRITTEN), clock=lambda: datetime.now(UTC))

    def decide(tool: str, key: str, sender: str) -> str:
        return gate.decide(tool, ToolPlace(tmp_path, key), [sender])

    assert decide("shell", "telegram:1", "1") == "allow"
    assert decide("shell", "telegram:2", "2") == "ask"
    assert decide("shell", "telegram:-100123", "2") == "deny"
    assert decide("shell", "telegram:-100123", "1") == "allow"
    assert decide("mcp.files.read", "telegram:2", "2") == "deny"
    assert decide("mcp.files.read", "discord:2", "2") == "ask"
    assert decide("read", "discord:2", "2") == "allow"


def test_the_environment_sets_it_too(tmp_path: Path) -> None:
    settings = read(tmp_path, "", CHAT_GATEWAY_TOOLS__POLICY__SHELL="ask")

    assert settings.tools.policy.tools == {"shell": "ask"}


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    read(tmp_path, WRITTEN)
    words = ["--config", tmp_path / "c.toml", "config", "show"]
    again = read(tmp_path, Ran(tmp_path / "w", *words).out)
    shown = json.loads(Ran(tmp_path / "w", *words, "--json").out)

    assert again.tools.policy == read(tmp_path, WRITTEN).tools.policy
    assert shown["tools"]["policy"]["people"] == {"ada": {"shell": "allow"}}
    assert shown["tools"]["policy"]["shell"] == "ask"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[tools.policy]\nshell = "no"', 'tools.policy.shell: expected "allow" or "ask" or "deny"'),
        ('[tools.policy.people.ada]\nshell = "no"', "tools.policy.people.ada.shell: expected"),
        ('[tools.policy.chats.ada]\nshell = "ask"', "tools.policy.chats: 'ada': expected a key"),
        ("[tools.policy]\napproval_timeout_s = 0", "tools.policy.approval_timeout_s: expected"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)

    assert any(problem in each for each in refused.value.problems)
