"""The verbs of ``config``: what holds, what is wrong, and which file is read."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from pathlib import Path

import pytest

from gateway.config.checking import exposed_files
from gateway.config.load import load
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
name = "openai/tab\\t\\"quote\\""
api_base = "http://ada:{SECRET}@host/"
"""
    )
    environ = {
        "CHAT_GATEWAY_BROKER__URL": "amqp://guest:guest@host/",
        "CHAT_GATEWAY_STATE__URL": f"postgresql://ada:{SECRET}@host/chat",
    }

    toml = command("config", "show", cwd=tmp_path, environ=environ)
    document = command("config", "show", "--json", cwd=tmp_path, environ=environ)

    shown = tomllib.loads(toml.stdout)
    assert shown == json.loads(document.stdout)
    assert shown["workspace"] == str(tmp_path / "data")
    assert shown["channels"]["telegram"]["token"] == "********"
    assert shown["http"]["token"] == ""
    assert shown["broker"]["url"] == "amqp://guest:********@host/"
    assert shown["state"]["url"] == "postgresql://ada:********@host/chat"
    assert (shown["history"]["mode"], shown["compaction"]["max_chars"]) == ("relevant", 20_000)
    assert shown["people"] == {"j\u00f6rg": ["telegram:1"]}
    assert shown["model"]["name"] == 'openai/tab\t"quote"'
    assert SECRET not in toml.stdout + toml.stderr + document.stdout
    (tmp_path / "again.toml").write_text(toml.stdout)
    assert command("--config", "again.toml", "config", "check", cwd=tmp_path).returncode == 0


def test_config_path_prints_the_file_that_is_read(tmp_path: Path) -> None:
    """Nothing on stdout where there is none."""
    none = command("config", "path", cwd=tmp_path)
    (tmp_path / "chat-gateway.toml").touch()
    found = command("config", "path", cwd=tmp_path)
    document = command("config", "path", "--json", cwd=tmp_path)

    assert (none.returncode, none.stdout) == (0, "")
    assert (found.returncode, found.stdout) == (0, f"{tmp_path}/chat-gateway.toml\n")
    assert json.loads(document.stdout) == {"file": f"{tmp_path}/chat-gateway.toml", "exists": True}


def test_config_check_names_what_nothing_answers_to(tmp_path: Path) -> None:
    """Models, keys, tools, a misspelt deny, ids and the workspace, besides a key that is unknown."""
    (tmp_path / "file").touch()
    file = tmp_path / "c.toml"
    file.write_text(
        """
workspace = "file"
timezon = "UTC"
[model]
name = "gpt-nonsense-9"
fallbacks = ["openia/gpt-4o"]
[tools]
direct = ["raed", "read"]
[tools.policy]
shel = "deny"
"*" = "ask"
"mcp.tme.now" = "deny"
[tools.policy.people.ada]
wirte = "ask"
[channels.discord]
group_allow = ["general", 12, "*"]
[channels.slack]
token = "x"
[channels.telegarm]
enabled = true
[mcp.time]
command = ["uvx"]
[limits]
attempts = "x"
[agents.work]
model.name = "nonsense/x"
"""
    )

    words = command("--config", str(file), "config", "check", cwd=tmp_path)
    file.write_text('[model]\nname = "groq/llama-3.3-70b-versatile"\n')
    keyless = command("--config", str(file), "config", "check", cwd=tmp_path)
    keyed = command("--config", str(file), "config", "check", cwd=tmp_path, environ={"GROQ_API_KEY": "x"})

    assert words.returncode == 78
    for said in (
        f"workspace: {tmp_path}/file is not a folder",
        "timezon: unknown key; nearest: timezone",
        "model.name: no provider is known for 'gpt-nonsense-9'",
        "model.fallbacks: LiteLLM knows no provider 'openia'; nearest: 'openai'",
        "tools.direct: no tool 'raed'; nearest: 'read'",
        "tools.policy.shel: no tool 'shel'; nearest: 'shell'",
        "tools.policy.mcp.tme.now: no server 'tme'; nearest: 'time'",
        "tools.policy.people.ada.wirte: no tool 'wirte'; nearest: 'write'",
        "channels.discord.group_allow: 'general' is not a numeric id",
        "channels.slack: no adapter of this name is installed; available: telegram, discord, web",
        "nearest: channels.telegram",
        "agents.work.model.name: LiteLLM knows no provider 'nonsense'",
    ):
        assert said in words.stderr
    assert "slack: unknown key; nearest" not in words.stderr
    # One that is wrong in itself hides none of the others.
    assert "limits.attempts: expected a whole number" in words.stderr
    assert words.stderr.splitlines()[-1].startswith("try: correct 13 problems in ")
    assert (keyless.returncode, "set GROQ_API_KEY" in keyless.stderr) == (78, True)
    assert keyed.returncode == 0


def test_config_check_warns_of_what_a_model_lacks(tmp_path: Path) -> None:
    """Tools over ``ollama/``, also of an agent's model; a price where a cap counts dollars."""
    (tmp_path / "chat-gateway.toml").write_text(
        """
[model]
name = "openai/of-our-own"
api_base = "http://127.0.0.1:9/v1"
fallbacks = ["ollama/llama3.3"]
[agents.small.model]
name = "ollama/qwen3"
[limits]
cost_per_chat_per_day_usd = 1.0
"""
    )

    checked = command("config", "check", "--json", cwd=tmp_path)

    warnings = json.loads(checked.stdout)["warnings"]
    assert checked.returncode == 0
    assert sum("ollama_chat/" in warning for warning in warnings) == 2
    (unpriced,) = [warning for warning in warnings if "no price is known for openai/of-our-own" in warning]
    assert "limits.cost_per_chat_per_day_usd cannot count it" in unpriced


def test_files_with_secrets_that_others_can_read_or_change_are_named_with_the_cure(tmp_path: Path) -> None:
    """By ``config check`` and ``doctor``; their contents are not shown."""
    (tmp_path / "w").mkdir(mode=0o700)
    file, token, ca = tmp_path / "c.toml", tmp_path / "http.token", tmp_path / "ca.pem"
    headers = tmp_path / "w/headers"
    for path in (token, headers, ca):
        path.write_text(f"A:{SECRET}{'0123456789abcdef' * 2}\n")
        path.chmod(0o644)
    file.write_text(
        f"""
workspace = "w"
broker.ca_file = "{ca}"
http.token_file = "http.token"
channels.telegram.token = "{SECRET}"
mcp.there = {{url = "http://127.0.0.1:1/", headers_file = "headers"}}
"""
    )
    file.chmod(0o644)

    checked = command("--config", str(file), "config", "check", "--json", cwd=tmp_path)
    words = command("--config", str(file), "config", "check", cwd=tmp_path)
    doctor = command("--config", str(file), "doctor", "--json", cwd=tmp_path)

    said = [f"others can read {path}, which contains a secret" for path in (file, token, headers)]
    cures = [f"chmod go= {path}" for path in (file, token, headers)]
    warned = [f"{text}; {cure}" for text, cure in zip(said, cures, strict=True)]
    assert json.loads(checked.stdout)["warnings"] == warned
    assert all(f"warning: {line}" in words.stderr for line in warned)
    rows = [row for row in json.loads(doctor.stdout) if row["name"] == "permissions"]
    assert [(row["level"], row["text"], row["cure"]) for row in rows[:3]] == [
        ("warn", text, cure) for text, cure in zip(said, cures, strict=True)
    ]
    assert SECRET not in checked.stdout + words.stdout + words.stderr + doctor.stdout + doctor.stderr

    for path in (file, token, headers):
        path.chmod(0o600)
    assert list(exposed_files(load(file))) == []
    token.chmod(0o620)
    assert list(exposed_files(load(file))) == []
    for path in (ca, file):
        path.chmod(0o666)
    assert [text for text, _ in exposed_files(load(file))] == [
        f"others can change {each}" for each in (file, ca)
    ]


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ('# broker.url = "amqp://user:password@host/"\nmodel.name = "openai/gpt-4o"', False),
        ('broker.url = "amqp://guest:guest@localhost/"', False),
        ('broker.url = "amqp://ada:hidden%23word@localhost/"', True),
        ('[mcp.there]\ncommand = ["true"]\nenv = {KEY = "hidden\\"word"}', True),
        ('mcp.there.url = "http://host/?key=0123456789abcdef"', True),
        ('[agents.work.model]\nname = "openai/gpt-4o"\napi_key = "sk-hidden-word"', True),
    ],
)
def test_only_a_configuration_that_holds_a_secret_has_to_be_private(
    tmp_path: Path, text: str, is_named: bool
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    file.chmod(0o644)

    assert bool(list(exposed_files(load(file, environ={"HOME": str(tmp_path)})))) is is_named


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_user_are_named_and_those_that_the_machine_hands_over_are_not(
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory(dir="/run") as place:
        handed, file = Path(place, "token"), tmp_path / "c.toml"
        handed.write_text("0123456789abcdef" * 2)
        file.write_text(f'http.token_file = "{handed}"')
        handed.chmod(0o444)
        file.chmod(0o640)
        os.chown(handed, 12345, 12345)
        os.chown(file, 12345, 12345)

        found = list(exposed_files(load(file, tmp_path)))

    assert found == [(f"{file} belongs to the user 12345, who can change it", f"chown 0 {file}")]
