"""``[agents]`` and ``[[bindings]]`` as they are read: what falls back, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.agents import agents_of, settings_of
from gateway.config.redact import secrets_of
from gateway.errors import ConfigError
from tests.gateway.config_reading import read_alone as read

HEAD = """[model]
name = "openai/x"
api_key = "sk-of-openai"
api_base = "http://one/v1"
[compaction]
keep_recent_tokens = 5
[tools.policy]
shell = "deny"
[people]
ada = ["telegram:1"]
[agents.coder]
"""


def test_what_an_agent_leaves_out_is_as_in_the_sections(tmp_path: Path) -> None:
    """Tables within tables as well; from outside by the environment, too."""
    settings = read(
        tmp_path,
        HEAD + 'memory.window = 7\ntools.policy.write = "ask"\n',
        CHAT_GATEWAY_AGENTS__CODER__MODEL__TIMEOUT_S="9",
    )

    own = settings_of(settings, "coder")

    assert own.model == settings.model.model_copy(update={"timeout_s": 9.0})
    assert (own.memory.window, own.memory.scope) == (7, "chat")
    assert own.tools.policy.tools == {"shell": "deny", "write": "ask"}
    assert own.compaction == settings.compaction
    assert settings_of(settings, "") is settings


def test_the_key_of_one_provider_is_shown_to_no_other(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-of-another\n")
    alike = settings_of(read(tmp_path, HEAD + 'model.name = "openai/y"\n'), "coder").model
    other = settings_of(read(tmp_path, HEAD + 'model.name = "anthropic/y"\n'), "coder").model
    moved = settings_of(read(tmp_path, HEAD + 'model.api_base = "http://two/v1"\n'), "coder").model
    named = read(tmp_path, HEAD + 'model.name = "anthropic/y"\nmodel.api_key_file = "key"\n')

    assert (alike.api_key.get_secret_value(), alike.api_base) == ("sk-of-openai", "http://one/v1")
    assert (other.api_key.get_secret_value(), other.api_base) == ("", "")
    assert (moved.api_key.get_secret_value(), moved.api_base) == ("", "http://two/v1")
    assert settings_of(named, "coder").model.api_key.get_secret_value() == "sk-of-another"
    assert "sk-of-another" in secrets_of(named).values()


def test_another_preset_begins_with_its_own_numbers(tmp_path: Path) -> None:
    own = settings_of(read(tmp_path, HEAD + 'compaction.preset = "archive"\n'), "coder")

    assert own.compaction.keep_recent_tokens is None


def test_bindings_are_read_with_a_person_for_each_key(tmp_path: Path) -> None:
    bound = (
        '[[bindings]]\nagent = "coder"\nperson = "ada"\n[[bindings]]\nagent = "default"\nchannel = "cli"\n'
    )
    agents = agents_of(read(tmp_path, HEAD + bound))

    assert [agents.of(key, None) for key in ("telegram:1", "telegram:2", "cli:x")] == ["coder", "", ""]


BIND = '[[bindings]]\nagent = "coder"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('persna = "x"', "12: agents.coder.persna: unknown key; nearest: agents.coder.persona"),
        ('model.nane = "x"', "12: agents.coder.model.nane: unknown key; nearest: agents.coder.model.name"),
        ("model.timeout_s = 0", "12: agents.coder.model.timeout_s: expected a number above 0 and"),
        ('model.embedding = "x"', "12: agents.coder.model.embedding: all agents share one embedding model"),
        ("[agents.default]", "12: agents.default: 'default' is configured by the other sections"),
        ("[agents.Upper]", "12: agents.Upper: expected up to 32 lower-case letters"),
        (
            BIND.replace("coder", "codr") + 'channel = "cli"',
            "13: bindings[0].agent: no agent 'codr'",
        ),
        (BIND + 'channel = "telegrm"', "14: bindings[0].channel: no channel 'telegrm'; nearest: 'telegram'"),
        (BIND + 'person = "aba"', "14: bindings[0].person: [people] has no 'aba'; nearest: 'ada'"),
        (BIND + 'command = "new"', "14: bindings[0].command: /new is a built-in command"),
        (BIND + 'command = "New"', "14: bindings[0].command: expected a name of up to 32"),
        (BIND + 'chat = "nokey"', "14: bindings[0].chat: 'nokey': expected a key"),
        (BIND + 'topic = "telegram:1"', "14: bindings[0].topic: 'telegram:1' is not a topic"),
        (BIND, "12: bindings[0]: expected exactly one of topic, chat"),
        (BIND + 'command = "x"\nfixed = true', "12: bindings[0]: fixed applies to chats"),
        (
            BIND + f'channel = "cli"\n{BIND}channel = "cli"',
            "17: bindings[1].channel: 'cli' is already bound by",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_what_was_meant(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, HEAD + text + "\n")

    (problem,) = caught.value.problems
    assert f"c.toml:{words}" in problem
