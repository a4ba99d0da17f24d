"""The configuration: what is read from where, and how its problems are told."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr, ValidationError

from channels.tables import Platform, Table
from gateway.config import effective_compaction, effective_history, find_file, load
from gateway.errors import ConfigError
from gateway.settings import Settings
from gateway.toml_lines import lines_of, with_key
from session.presets import Numbers

EVERY_DEFAULT = """
timezone = "UTC"
[broker]
url = "embedded"
partitions = 16
queue_type = "auto"
heartbeat_s = 10
name = "chat"
[model]
name = "echo"
echo_delay_s = 0.0
api_base = ""
api_key = ""
context_window = 0
max_output_tokens = 4096
timeout_s = 120
max_tool_rounds = 25
fallbacks = []
small = ""
embedding = ""
[limits]
concurrent_turns = 64
turn_timeout_s = 600
pending_per_chat = 50
attempts = 3
outage_hours = 24
drain_s = 25
turns_per_person_per_hour = 0
cost_per_day_usd = 0.0
background_calls_per_hour = 60
background_calls_per_day = 500
queue_mode = "followup"
collect_s = 0.5
[session]
idle_hours = 0
recent_sessions = 3
recent_days = 14
retention_days = 0
cache_mb = 256
[history]
mode = "all"
changing_parts = "end"
last = 50
budget_tokens = 50000
candidates = 30
exchanges_always = 3
max_messages = 20
relevance = 0.45
full_tool_results = 2
[compaction]
preset = "overlay"
[memory]
scope = "chat"
window = 100
max_kb = 32
[people]
[tools]
direct = ["read", "write", "edit", "ls", "grep", "skill_read", "memory_search", "session_archive_read"]
groups = ["skill_read", "memory_search", "session_archive_read"]
[facts]
enabled = true
idle_s = 300
max_turns = 10
confidence = 0.7
[channels.telegram]
enabled = false
token = ""
base_url = "https://api.telegram.org/bot"
base_file_url = "https://api.telegram.org/file/bot"
poll_timeout_s = 30
request_timeout_s = 30
allow_from = []
direct = "pairing"
groups = "mention"
group_allow = []
stream = true
queue_mode = ""
[channels.discord]
enabled = false
token = ""
request_timeout_s = 30
allow_from = []
direct = "pairing"
groups = "mention"
group_allow = []
stream = true
queue_mode = ""
api_base_url = "https://discord.com/api/v10"
gateway_url = ""
cdn_base_url = ""
heartbeat_timeout_s = 60
sweep_s = 60
[channels.web]
enabled = true
[media]
max_mb = 20
timeout_s = 60
[http]
host = "127.0.0.1"
port = 8006
token = ""
allowed_hosts = []
[log]
format = "auto"
level = "info"
"""

SECRETS = ("channels.telegram.token", "channels.discord.token", "model.api_key", "http.token")


def read(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    file = folder / "chat-gateway.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, None, {"HOME": str(folder), **(environ or {})})


def problems(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ)
    assert caught.value.exit_code == 78
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_every_key_has_its_default(tmp_path: Path) -> None:
    """A file that writes out every default changes nothing, and no key is left out of it."""
    written, silent = read(tmp_path, EVERY_DEFAULT), read(tmp_path)

    assert written == silent
    assert silent.workspace == tmp_path / ".chat-gateway"

    def unset(table: Table) -> list[str]:
        missing = set(type(table).model_fields) - table.model_fields_set
        inner = (getattr(table, name) for name in table.model_fields_set)
        return [*missing, *(name for each in inner if isinstance(each, Table) for name in unset(each))]

    numbers = set(type(silent.compaction).model_fields) - {"preset"}
    assert set(unset(written)) == numbers


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
        "chat-gateway.toml:7: limits.drain_s: expected a number of at least 0, got text",
        "chat-gateway.toml:8: telegram: unknown key; nearest: channels.telegram",
        "chat-gateway.toml:11: channels.telegram.token: missing, though enabled = true; "
        "give token, token_file or a credential",
        "chat-gateway.toml:12: channels.telegram.allow_from[2]: expected text in quotes, got a number",
        "chat-gateway.toml:17: model.threshold: unknown key; nearest: compaction.threshold",
        "chat-gateway.toml:19: http.port: expected a whole number from 0 to 65535, got 65536",
        "CHAT_GATEWAY_MEDIA__MAX_MB: media.max_mb: expected a whole number of at least 1, got text",
    ]


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


def test_the_environment_overrides_the_file_by_each_key_s_type(tmp_path: Path) -> None:
    """Numbers, flags, lists with commas or JSON, tables as JSON, people by name."""
    settings = read(
        tmp_path,
        'timezone = "UTC"\n[limits]\nattempts = 5\ndrain_s = 1\n[people]\nbob = ["telegram:2"]\n',
        {
            "CHAT_GATEWAY_TIMEZONE": "Europe/Berlin",
            "CHAT_GATEWAY_LIMITS__DRAIN_S": "2.5",
            "CHAT_GATEWAY_LIMITS": '{"collect_s": 3, "drain_s": 9}',
            "CHAT_GATEWAY_BROKER__PARTITIONS": "4",
            "CHAT_GATEWAY_FACTS__ENABLED": "off",
            "CHAT_GATEWAY_TOOLS__DIRECT": "read, ls",
            "CHAT_GATEWAY_TOOLS__GROUPS": "",
            "CHAT_GATEWAY_CHANNELS__TELEGRAM__ALLOW_FROM": '[1, "2"]',
            "CHAT_GATEWAY_PEOPLE__ADA": "telegram:1,cli:direct",
            "CHAT_GATEWAY_COMPACTION__THRESHOLD": "0.5",
            "CHAT_GATEWAY_MODEL__NAME": "17",
        },
    )

    assert settings.timezone == "Europe/Berlin"
    assert (settings.limits.drain_s, settings.limits.collect_s, settings.limits.attempts) == (2.5, 3, 5)
    assert settings.broker.partitions == 4
    assert settings.facts.enabled is False
    assert (settings.tools.direct, settings.tools.groups) == (("read", "ls"), ())
    assert settings.channels.telegram.allow_from == ("1", "2")
    assert settings.people == {"ada": ("telegram:1", "cli:direct"), "bob": ("telegram:2",)}
    assert settings.compaction.threshold == 0.5
    assert settings.model.name == "17"


def test_a_misspelt_variable_is_a_problem(tmp_path: Path) -> None:
    """A token in a variable that nobody reads would leave the door open."""
    found = problems(
        tmp_path,
        "",
        {
            "CHAT_GATEWAY_LIMITS__DRAINS": "3",
            "CHAT_GATEWAY_TIMEZON": "UTC",
            "CHAT_GATEWAY_HTTP_TOKEN": "sesame",
            "CHAT_GATEWAY_QUUX__ZORK": "1",
        },
    )

    assert sorted(found) == [
        "CHAT_GATEWAY_HTTP_TOKEN: unknown key http_token; nearest: CHAT_GATEWAY_HTTP__TOKEN",
        "CHAT_GATEWAY_LIMITS__DRAINS: unknown key limits.drains; nearest: CHAT_GATEWAY_LIMITS__DRAIN_S",
        "CHAT_GATEWAY_QUUX__ZORK: unknown key quux.zork",
        "CHAT_GATEWAY_TIMEZON: unknown key timezon; nearest: CHAT_GATEWAY_TIMEZONE",
    ]


def test_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    """Kubernetes describes a service named chat-gateway in variables of the same prefix."""
    read(
        tmp_path,
        "",
        {
            "CHAT_GATEWAY_PORT": "tcp://10.0.0.1:8006",
            "CHAT_GATEWAY_SERVICE_HOST": "10.0.0.1",
            "CHAT_GATEWAY_PORT_8006_TCP_ADDR": "10.0.0.1",
            "CHAT_GATEWAY_HTTP_PORT": "tcp://10.0.0.2:80",
            "CHAT_GATEWAY_DEBUG": "1",
        },
    )


@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_may_lie_in_a_file_or_a_credential(tmp_path: Path, key: str) -> None:
    """x_file is read without its newline; a credential goes before the file, a variable before both."""
    table, name = key.rsplit(".", 1)
    (tmp_path / "secret").write_text("from-file\n")
    folder = tmp_path / "credentials"
    folder.mkdir()
    text = f'[{table}]\n{name}_file = "secret"\n'
    variable = "CHAT_GATEWAY_" + key.upper().replace(".", "__")

    def value(environ: Mapping[str, str]) -> str:
        found: object = read(tmp_path, text, environ)
        for part in key.split("."):
            found = getattr(found, part)
        assert isinstance(found, SecretStr)
        return found.get_secret_value()

    assert value({}) == "from-file"
    assert value({"CREDENTIALS_DIRECTORY": str(folder)}) == "from-file"
    (folder / key).write_text("from-credential")
    assert value({"CREDENTIALS_DIRECTORY": str(folder)}) == "from-credential"
    assert value({"CREDENTIALS_DIRECTORY": str(folder), variable: "from-variable"}) == "from-variable"
    (tmp_path / "other").write_text("from-other\r\n")
    assert value({f"{variable}_FILE": str(tmp_path / "other")}) == "from-other"


def test_the_broker_s_address_may_be_a_secret_file_too(tmp_path: Path) -> None:
    """Its password is decoded, hidden in what is shown, and absent from the settings' repr."""
    (tmp_path / "url").write_text("amqp://ada:p%40ssword@host/vhost\n")

    settings = read(tmp_path, '[broker]\nurl_file = "url"\n')

    assert settings.broker.password == "p@ssword"
    assert settings.broker.shown_url == "amqp://ada:********@host/vhost"
    assert "ssword" not in repr(settings)


def test_a_secret_file_that_fails_is_one_problem(tmp_path: Path) -> None:
    """Missing, empty, binary, too long, or named beside a value: told once."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"x" * 70_000)
    words = {"nope": "No such file", "empty": "is empty", "binary": "not UTF-8", "long": "is over"}

    for name, part in words.items():
        found = problems(tmp_path, f'[channels.discord]\nenabled = true\ntoken_file = "{name}"\n')
        assert len(found) == 1
        assert found[0].startswith("chat-gateway.toml:")
        assert part in found[0]
    (tmp_path / "good").write_text("x")
    twice = problems(tmp_path, '[http]\ntoken = "sesame"\ntoken_file = "good"\n')
    assert twice == ["chat-gateway.toml:2: http.token: given twice; keep one of token and token_file"]
    assert problems(tmp_path, "[http]\ntoken_file = 3\n") == [
        "chat-gateway.toml:2: http.token_file: expected the name of a file, got a whole number"
    ]


def test_no_problem_shows_a_secret(tmp_path: Path) -> None:
    """Whatever is wrong with it, and wherever it was put by mistake, the value stays hidden."""
    secret = "hunter2 hunter2\u00e9"
    text = f"""
[broker]
url = "amqp://ada:hunter2#@host"
queue_type = "{secret}"
[model]
api_key = "{secret}"
api_base = "{secret}"
max_output_tokens = "{secret}"
fallbacks = "{secret}"
[channels]
telegram = "{secret}"
[channels.discord]
enabled = true
token = ["{secret}"]
direct = "{secret}"
[http]
token = "{secret}"
port = "{secret}"
tokn = "{secret}"
[log]
level = "{secret}"
"""

    found = problems(tmp_path, text, {"CHAT_GATEWAY_LIMITS__ATTEMPTS": secret, "CHAT_GATEWAY_MODEL": secret})

    assert len(found) >= 12
    assert "hunter2" not in "\n".join(found)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("broker", 'url = "http://host"'),
        ("broker", 'url = "amqp://"'),
        ("broker", 'url = "amqp://u:1#x@host"'),
        ("broker", 'name = "a b"'),
        ("broker", "partitions = 257"),
        ("broker", "partitions = 1.0"),
        ("broker", "heartbeat_s = 0"),
        ("model", 'name = ""'),
        ("model", 'api_base = "localhost:8000"'),
        ("model", "timeout_s = 0"),
        ("model", "timeout_s = inf"),
        ("model", 'fallbacks = "x"'),
        ("model", "small = 1"),
        ("limits", "concurrent_turns = 0"),
        ("limits", "concurrent_turns = true"),
        ("limits", "collect_s = nan"),
        ("limits", "cost_per_day_usd = -0.1"),
        ("limits", 'queue_mode = "x"'),
        ("session", "cache_mb = 0"),
        ("history", "relevance = 1.5"),
        ("compaction", "threshold = 0"),
        ("compaction", 'preset = "x"'),
        ("memory", "window = 1"),
        ("facts", "confidence = 1.01"),
        ("facts", 'enabled = "yes"'),
        ("people", "ada = 3"),
        ("people", 'ada = ["telegram"]'),
        ("people", '"a/b" = ["telegram:1"]'),
        ("people", 'a = ["cli:1"]\nb = ["cli:1"]'),
        ("channels.telegram", 'direct = "x"'),
        ("channels.telegram", 'base_url = ""'),
        ("channels.telegram", "poll_timeout_s = 0.5"),
        ("channels.discord", "enabled = true"),
        ("channels.discord", 'gateway_url = "http://x"'),
        ("channels", "x = 1"),
        ("channels.matrix", "enabled = false"),
        ("http", "port = -1"),
        ("http", 'host = ""'),
        ("http", 'host = "0.0.0.0"'),
        ("http", 'host = "::"'),
        ("http", 'token = "a b"'),
        ("http", 'token = "a\\nb"'),
        ("log", 'level = "loud"'),
        ("log", "level = 1979-05-27"),
    ],
)
def test_what_makes_no_sense_is_one_problem(tmp_path: Path, table: str, line: str) -> None:
    """Each value out of its type or range is told at its place."""
    found = problems(tmp_path, f"[{table}]\n{line}\n")

    assert len(found) == 1
    assert found[0].startswith(("chat-gateway.toml:1: ", "chat-gateway.toml:2: "))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_only_loopback_needs_no_token(tmp_path: Path, host: str) -> None:
    """A host that others can reach needs a token, and is fine with one."""
    assert read(tmp_path, f'[http]\nhost = "{host}"\n').http.host == host
    assert read(tmp_path, '[http]\nhost = "0.0.0.0"\ntoken = "sesame"\n').http.host == "0.0.0.0"


def test_the_workspace_is_absolute_and_the_nearest_to_the_caller_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--workspace, then the variable, then the file (relative to its folder), then the home folder."""
    file = tmp_path / "etc/c.toml"
    file.parent.mkdir()
    file.write_text('workspace = "../data"\n')
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    environ = {"HOME": str(tmp_path), "CHAT_GATEWAY_WORKSPACE": "~/by-variable"}

    assert load(file, Path("mine"), environ).workspace == here / "mine"
    assert load(file, None, environ).workspace == tmp_path / "by-variable"
    assert load(file, None, {"HOME": str(tmp_path)}).workspace == tmp_path / "data"
    assert load(Path(os.devnull), None, {"HOME": "/h"}).workspace == Path("/h/.chat-gateway")
    assert problems(tmp_path, "workspace = 3\n")[0].startswith("chat-gateway.toml:1: workspace: expected")


def test_the_zone_is_ready_to_use(tmp_path: Path) -> None:
    """UTC needs no zone database."""
    assert read(tmp_path).zone is UTC
    assert read(tmp_path, 'timezone = "Asia/Tokyo"').zone == ZoneInfo("Asia/Tokyo")
    for name in ("", "../etc/passwd", "/etc/passwd", "Mars"):
        assert len(problems(tmp_path, f'timezone = "{name}"')) == 1


def test_settings_are_frozen(tmp_path: Path) -> None:
    """Nobody changes the configuration of a running daemon by accident."""
    settings = read(tmp_path)

    with pytest.raises(ValidationError):
        settings.limits.attempts = 9  # type: ignore[misc]


def test_a_preset_sets_what_the_configuration_leaves_open(tmp_path: Path) -> None:
    """Each preset's own numbers; a key that is set overrides them, a default that is not set does not."""
    numbers = {name: _preset(tmp_path, name) for name in ("overlay", "archive", "annabelle", "budget", "off")}
    modes = {name: _modes(tmp_path, name) for name in numbers}

    assert (numbers["overlay"].reserve_tokens, numbers["overlay"].keep_recent_tokens) == (16_384, 20_000)
    assert (numbers["archive"].threshold, numbers["archive"].keep_recent_tokens) == (0.8, 0)
    assert numbers["archive"].chars_per_token == 3.5
    annabelle = numbers["annabelle"]
    assert (annabelle.max_chars, annabelle.min_turns, annabelle.keep_recent_turns) == (20_000, 8, 5)
    assert (numbers["budget"].threshold, numbers["budget"].keep_recent_tokens) == (0.8, 20_000)
    assert {(each.cooldown_s, each.timeout_s) for each in numbers.values()} == {(120, 30)}
    assert modes["annabelle"] == ("relevant", "system")
    assert modes["budget"] == ("last", "end")
    assert modes["overlay"] == modes["archive"] == modes["off"] == ("all", "end")

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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", '[memory]\nscope = "w"\n'),
        ("# nothing", '# nothing\n\n[memory]\nscope = "w"\n'),
        ("a = 1\n", 'a = 1\n\n[memory]\nscope = "w"\n'),
        ("[memory]", '[memory]\nscope = "w"\n'),
        ("a = 1\r\n[memory]\r\nb = 2\r\n", 'a = 1\r\n[memory]\r\nscope = "w"\r\nb = 2\r\n'),
        ('[ "memory" ] # x\n[b]\n', '[ "memory" ] # x\nscope = "w"\n[b]\n'),
        ("memory.b = 2\n[c]\n", 'memory.scope = "w"\nmemory.b = 2\n[c]\n'),
        ('a = """\n[memory]\n"""\n', 'a = """\n[memory]\n"""\n\n[memory]\nscope = "w"\n'),
        ('a = """\n[memory]\n"""\n[memory]\n', 'a = """\n[memory]\n"""\n[memory]\nscope = "w"\n'),
        ("a = '\u2028\x85'\n[memory]\n", "a = '\u2028\x85'\n[memory]\nscope = \"w\"\n"),
        ("memory = {}\n", None),
        ("[[memory]]\n", None),
        ("memory = 3\n", None),
        ('memory.scope = "x"\n', None),
        ("[memory.sub]\nscope = 1\n", None),
    ],
)
def test_a_key_is_put_in_where_it_belongs(old: str, new: str | None) -> None:
    """Everything else keeps its bytes; what cannot be done from outside is left."""
    assert with_key(old, ("memory", "scope"), '"w"') == new
