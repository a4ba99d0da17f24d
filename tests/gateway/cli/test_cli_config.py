"""The verbs of ``config``: what holds, what is wrong, and which file is read."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests.gateway.cli_place import command

SECRET = "sk-very-secret-key"


def test_config_show_prints_what_holds_and_hides_secrets(tmp_path: Path) -> None:
    """Its TOML is a configuration again, with the preset's numbers; JSON says the same."""
    (tmp_path / "chat-gateway.toml").write_text(
        f"""
workspace = "data"
[compaction]
preset = "annabelle"
[people]
"j\u00f6rg" = ["telegram:1"]
[channels.telegram]
enabled = true
token = "{SECRET}"
[model]
name = "tab\\t\\"quote\\""
api_base = "http://ada:{SECRET}@host/"
"""
    )
    environ = {"CHAT_GATEWAY_BROKER__URL": "amqp://guest:guest@host/"}

    toml = command("config", "show", cwd=tmp_path, environ=environ)
    document = command("config", "show", "--json", cwd=tmp_path, environ=environ)

    shown = tomllib.loads(toml.stdout)
    assert shown == json.loads(document.stdout)
    assert shown["workspace"] == str(tmp_path / "data")
    assert shown["channels"]["telegram"]["token"] == "********"
    assert shown["http"]["token"] == ""
    assert shown["broker"]["url"] == "amqp://guest:********@host/"
    assert (shown["history"]["mode"], shown["compaction"]["max_chars"]) == ("relevant", 20_000)
    assert shown["people"] == {"j\u00f6rg": ["telegram:1"]}
    assert shown["model"]["name"] == 'tab\t"quote"'
    assert SECRET not in toml.stdout + toml.stderr + document.stdout
    (tmp_path / "again.toml").write_text(toml.stdout)
    assert command("--config", "again.toml", "config", "check", cwd=tmp_path).returncode == 0


def test_config_check_names_all_problems_or_says_fine(tmp_path: Path) -> None:
    """78 with every problem, 0 without one; --json is one document either way."""
    fine = command("config", "check", cwd=tmp_path)
    (tmp_path / "c.toml").write_text("[limits]\natempts = 1\n[http]\nport = -1\n")
    bad = command("config", "check", "--config", "c.toml", cwd=tmp_path)
    document = command("config", "check", "--config", "c.toml", "--json", cwd=tmp_path)

    assert (fine.returncode, fine.stderr) == (0, "")
    assert fine.stdout.endswith("fine\n")
    assert (bad.returncode, document.returncode) == (78, 78)
    assert bad.stdout == ""
    assert bad.stderr.splitlines()[0] == (
        "error: c.toml:2: limits.atempts: unknown key; nearest: limits.attempts"
    )
    assert len(json.loads(document.stdout)["problems"]) == 2


def test_config_path_prints_the_file_that_is_read(tmp_path: Path) -> None:
    """Nothing on stdout where there is none."""
    none = command("config", "path", cwd=tmp_path)
    (tmp_path / "chat-gateway.toml").touch()
    found = command("config", "path", cwd=tmp_path)
    document = command("config", "path", "--json", cwd=tmp_path)

    assert (none.returncode, none.stdout) == (0, "")
    assert (found.returncode, found.stdout) == (0, f"{tmp_path}/chat-gateway.toml\n")
    assert json.loads(document.stdout) == {"file": f"{tmp_path}/chat-gateway.toml", "exists": True}
