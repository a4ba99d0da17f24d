"""The configuration: what is read from where, and how its problems are told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from channels.tables import Platform
from gateway.app.wiring_session import queue_rules
from gateway.config.finding import find_file
from gateway.config.load import load
from gateway.config.settings import effective_compaction, effective_history
from gateway.config.toml_lines import lines_of
from gateway.errors import ConfigError
from session.compaction.rules import Numbers
from tests.gateway.config_reading import problems, read


def test_all_problems_are_named_at_once_with_line_and_nearest_key(tmp_path: Path) -> None:
    """One run shows everything that is to be corrected, in the file's order."""
    text = """\
timezone = "Europe/Berln"
[broker]
partitions = 0
queue_type = "quorm"
[limits]
concurrent_turn = 3
"drain_s" = "10"
[telegram]
token = "a"
[channels.telegram]
enabled = true
allow_from = [
  1, # a ]
  "2", 3.5,
]
[model]
threshold = 0.8
[http]
port = 65536
"""

    assert problems(tmp_path, text, {"CHAT_GATEWAY_MEDIA__MAX_MB": "many"}) == [
        "chat-gateway.toml:1: timezone: expected the name of a time zone such as Europe/Berlin",
        "chat-gateway.toml:3: broker.partitions: expected a whole number from 1 to 256, got 0",
        'chat-gateway.toml:4: broker.queue_type: expected "auto" or "classic" or "quorum"; nearest: "quorum"',
        "chat-gateway.toml:6: limits.concurrent_turn: unknown key; nearest: limits.concurrent_turns",
        "chat-gateway.toml:7: limits.drain_s: expected a number from 0 to 1000000000, got text",
        "chat-gateway.toml:8: telegram: unknown key; nearest: channels.telegram",
        "chat-gateway.toml:11: channels.telegram.token: missing, though enabled = true; "
        "give token, token_file or a credential",
        "chat-gateway.toml:12: channels.telegram.allow_from[2]: expected text in quotes, got a number",
        "chat-gateway.toml:17: model.threshold: unknown key; nearest: compaction.threshold",
        "chat-gateway.toml:19: http.port: expected a whole number from 0 to 65535, got 65536",
        "CHAT_GATEWAY_MEDIA__MAX_MB: media.max_mb: expected a whole number of at least 1, got text",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[broker]\nname = "a b"',
            "2: broker.name: expected text that fits ^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
        ),
        ("[[agents]]", "1: agents: expected a table for each name, as [agents.NAME], got a list"),
        ("[[mcp]]", "1: mcp: expected a table for each name, as [mcp.NAME], got a list"),
        ("[people]\nada = {}", "2: people.ada: expected a list of quoted texts, got a table"),
        (
            '[mcp.x]\nurl = "http://h"\nenv = {PORT = 1}',
            "3: mcp.x.env.PORT: expected text in quotes, got a whole number",
        ),
        ("[[bindings]]\nchannel = 1", "1: bindings[0].agent: missing"),
        (
            '[[bindings]]\nagent = "x"\nchannel = 1',
            "3: bindings[0].channel: expected text in quotes, got a whole",
        ),
        ("[compaction]\ntimeout_s = 1e300", "2: compaction.timeout_s: expected a number above 0 and at most"),
        ("[model]\ntimeout_s = inf", "2: model.timeout_s: expected a number above 0 and at most 1000000000"),
        ('[model]\napi_key_file = "a\\u0000"', "2: model.api_key_file: expected a file name"),
        ('[model]\n\napi_key_file = "/dev/null"', "3: model.api_key_file: /dev/null is empty"),
    ],
)
def test_what_is_expected_is_named_and_is_not_what_stands_there(tmp_path: Path, text: str, said: str) -> None:
    assert problems(tmp_path, text)[0].startswith(f"chat-gateway.toml:{said}")


def test_a_variable_of_other_bytes_is_told_as_such(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "", {"CHAT_GATEWAY_MODEL__NAME": "\udcff"})

    assert problem.endswith("model.name: expected text in quotes, got text that is not UTF-8")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a = "x\n', 1),
        ("[broker]\nurl = \n", 2),
        ("[broker]\n[broker]\n", 2),
        ("x = [1,\n2\n", 3),
        ("a = \x01", 1),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    """The parser's complaint comes with the line, and nothing is said of keys that could not be read."""
    found = problems(tmp_path, text, {"CHAT_GATEWAY_LIMITS__ATTEMPTS": "0"})

    assert found[0].startswith(f"chat-gateway.toml:{line}: not TOML")
    assert found[1:] == [
        "CHAT_GATEWAY_LIMITS__ATTEMPTS: limits.attempts: expected a whole number of at least 1, got 0"
    ]


def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8, a number without end: each is told, none is a crash."""
    (tmp_path / "latin").write_bytes(b'# ok\nname = "\xe4"\n')
    (tmp_path / "long").write_text(f"x = {'9' * 5000}")
    ends = {"missing": "No such file", ".": "Is a directory", "latin": ":2: not UTF-8", "long": "not TOML"}

    for name, words in ends.items():
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / name, None, {})
        assert len(caught.value.problems) == 1
        assert words in caught.value.problems[0]


def test_a_file_named_by_the_environment_must_exist(tmp_path: Path) -> None:
    """$CHAT_GATEWAY_CONFIG is as binding as --config."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load(None, None, {"CHAT_GATEWAY_CONFIG": str(tmp_path / "nope.toml")})


def test_the_file_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config, the variable, the current folder, the home folder, none."""
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path / "home")}
    at_home = tmp_path / "home/.config/chat-gateway/config.toml"
    assert find_file(None, environ) is None

    at_home.parent.mkdir(parents=True)
    at_home.touch()
    assert find_file(None, environ) == at_home
    Path("chat-gateway.toml").touch()
    assert find_file(None, environ) == Path("chat-gateway.toml")
    named = environ | {"CHAT_GATEWAY_CONFIG": "~/other.toml"}
    assert find_file(None, named) == tmp_path / "home/other.toml"
    assert find_file(Path("x"), named) == Path("x")


def test_a_preset_sets_what_the_configuration_leaves_open(tmp_path: Path) -> None:
    """Each preset's own numbers; a key that is set overrides them, a default that is not set does not."""
    presets = ("overlay", "archive", "annabelle", "budget", "off")
    modes = {name: _modes(tmp_path, name) for name in presets}

    kept = [_preset(tmp_path, name).keep_recent_tokens for name in ("overlay", "archive", "budget")]
    assert kept == [20_000, 0, 20_000]
    assert (modes.pop("annabelle"), modes.pop("budget")) == (("relevant", "system"), ("last", "end"))
    assert set(modes.values()) == {("all", "end")}

    assert _preset(tmp_path, "overlay", "keep_recent_tokens = 7").keep_recent_tokens == 7
    assert _modes(tmp_path, "annabelle", '[history]\nmode = "all"') == ("all", "system")
    assert _modes(tmp_path, "annabelle", "[history]\nlast = 9") == ("relevant", "system")


def _preset(folder: Path, name: str, more: str = "") -> Numbers:
    return effective_compaction(read(folder, f'[compaction]\npreset = "{name}"\n{more}\n'))


def _modes(folder: Path, name: str, more: str = "") -> tuple[str, str]:
    history = effective_history(read(folder, f'[compaction]\npreset = "{name}"\n{more}\n'))
    return history.mode, history.changing_parts


def test_an_adapter_of_another_package_brings_its_own_table(tmp_path: Path) -> None:
    """Its keys are checked, overridden and kept secret like those built in."""

    class Matrix(Platform):
        room: str = "lobby"

    file = tmp_path / "c.toml"
    file.write_text('[channels.matrix]\nenabled = true\nroom = "den"\n')
    environ = {"CHAT_GATEWAY_CHANNELS__MATRIX__TOKEN": "sesame"}

    settings = load(file, tmp_path, environ, tables={"matrix": Matrix})

    matrix = getattr(settings.channels, "matrix")  # noqa: B009 - known only when the program runs
    assert isinstance(matrix, Matrix)
    assert (matrix.room, matrix.token.get_secret_value()) == ("den", "sesame")
    assert settings.channels.web.enabled
    with pytest.raises(ConfigError, match=r"channels\.matrix\.token: missing"):
        load(file, tmp_path, {}, tables={"matrix": Matrix})


def test_lines_are_found_whatever_the_layout() -> None:
    """Strings over several lines, nested lists, quoted and dotted names, CRLF, tables written late."""
    text = "\n".join(
        [
            'top = """',
            "[not.a.table]",
            'x = 1 \\"""',
            '""" # "',
            'b.c = \'it"""s\'',
            '"q.r" . s = [ [1, "]"], # [',
            "  2 ]",
            "",
            '[ t . "u v" ]  # [x]',
            'k = { a = 1, b = "}" }\r',
            "l = '''",
            "k = 2",
            "'''",
            "[[many]]",
            "z = 1",
            "[[many]]",
            "z = 2",
            "[t]",
            "late = [",
            '["x"],',
            "]",
            "after = 1",
        ]
    )
    tomllib.loads(text)

    lines = lines_of(text)

    assert lines[("top",)] == 1
    assert ("not", "a", "table") not in lines
    assert (lines[("b", "c")], lines[("b",)]) == (5, 5)
    assert lines[("q.r", "s")] == 6
    assert lines[("t", "u v")] == 9
    assert (lines[("t", "u v", "k")], lines[("t", "u v", "l")]) == (10, 11)
    assert lines[("many", "z")] == 15
    assert (lines[("t", "late")], lines[("t", "after")]) == (19, 22)


def test_a_channels_own_mode_stands_before_that_of_all(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[limits]\nqueue_mode = "collect"\ncollect_s = 2\n[channels.telegram]\nqueue_mode = "steer"\n'
    )

    rules = queue_rules(load(tmp_path / "c.toml", tmp_path / "w", {}, tables={}))

    assert [rules.of(name) for name in ("telegram", "discord", "web")] == ["steer", "collect", "collect"]
    assert rules.collect_s == 2
