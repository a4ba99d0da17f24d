"""The environment, files of secrets and what makes no sense."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr

from gateway.config import edit, finding
from gateway.config.load import load
from gateway.errors import ConfigError, GatewayError
from tests.gateway.config_reading import problems, read

SECRETS = ("channels.telegram.token", "channels.discord.token", "model.api_key", "http.token")


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
    found = read(
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

    assert found == read(tmp_path, "", {})
    assert (found.http.host, found.http.port) == ("127.0.0.1", 8006)


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


@pytest.mark.parametrize("end", ["\n", " \n", "\t\r\n", "  \n\n", " "])
def test_spaces_and_line_ends_behind_a_secret_in_a_file_do_not_count(tmp_path: Path, end: str) -> None:
    (tmp_path / "token").write_bytes(f"sesame-opens{end}".encode())

    token = read(tmp_path, '[http]\ntoken_file = "token"\n', {}).http.token

    assert token is not None
    assert token.get_secret_value() == "sesame-opens"


def test_a_secret_in_a_table_of_the_environment_goes_over_file_and_credential(tmp_path: Path) -> None:
    """As that of a variable of its own does; two of the environment are one too many."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "channels.telegram.token").write_text("1:credential")
    (tmp_path / "token").write_text("1:file")
    table, key = "CHAT_GATEWAY_CHANNELS__TELEGRAM", "channels.telegram.token"
    kept = '[channels.telegram]\ntoken_file = "token"\n'

    for text in ("", kept, '[channels.telegram]\ntoken = "1:plain"\n'):
        for variable in (
            {table: '{"token": "1:own"}'},
            {table.rpartition("__")[0]: '{"telegram": {"token": "1:own"}}'},
        ):
            environ = {"CREDENTIALS_DIRECTORY": str(credentials), **variable}
            assert read(tmp_path, text, environ).channels.telegram.token == SecretStr("1:own")
    by_file = {table: f'{{"token_file": "{tmp_path / "token"}"}}'}
    plain = '[channels.telegram]\ntoken = "1:plain"\n'
    assert read(tmp_path, plain, by_file).channels.telegram.token == SecretStr("1:file")
    twice = {table: '{"token": "1:own"}', f"{table}__TOKEN_FILE": str(tmp_path / "token")}
    assert problems(tmp_path, "", twice) == [f"{table}: {key}: given twice; keep one of token and token_file"]


def test_the_broker_s_address_may_be_a_secret_file_too(tmp_path: Path) -> None:
    """Its password is decoded, hidden in what is shown, and absent from the settings' repr."""
    (tmp_path / "url").write_text("amqp://ada:p%40ssword@host/vhost\n")

    settings = read(tmp_path, '[broker]\nurl_file = "url"\n')

    assert settings.broker.password == "p@ssword"
    assert settings.broker.shown_url == "amqp://ada:********@host/vhost"
    assert "ssword" not in repr(settings)


def test_the_state_database_s_address_is_hidden_and_needs_rabbitmq(tmp_path: Path) -> None:
    """It may be a secret file too; without a broker, or its client, the problem says what to do."""
    (tmp_path / "url").write_text("postgresql://ada:p%40ssword@host/chat\n")
    text = '[broker]\nurl = "amqp://host/"\n[state]\nurl_file = "url"\n'

    settings = read(tmp_path, text)

    assert settings.state_table.password == "p@ssword"
    assert settings.state_table.shown_url == "postgresql://ada:********@host/chat"
    assert "ssword" not in repr(settings)
    assert problems(tmp_path, '[state]\nurl = "postgresql://host/chat"\n') == [
        "chat-gateway.toml:2: state.url: needs RabbitMQ: "
        'set broker.url = "amqp://\u2026", or remove state.url'
    ]
    for wrong in ("mysql://ada:p@host/", "postgresql://ada:p#@host/", "postgresql://"):
        (found,) = problems(tmp_path, f'[state]\nurl = "{wrong}"\n')
        assert found.startswith("chat-gateway.toml:2: state.url: expected postgresql://user:password@host")


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
        "chat-gateway.toml:2: http.token_file: expected a file name, got a whole number"
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
        ("broker", 'url = "amqp:\\t//u:1@host"'),
        ("model", 'name = ""'),
        ("model", 'api_base = "localhost:8000"'),
        ("model", 'fallbacks = "x"'),
        ("limits", "collect_s = nan"),
        ("people", 'ada = ["telegram"]'),
        ("people", '"a/b" = ["telegram:1"]'),
        ("people", 'a = ["cli:1"]\nb = ["cli:1"]'),
        ("people", 'a = ["cli: 1"]'),
        ("people", 'Ada = ["cli:1"]\nada = ["cli:2"]'),
        ("people", f'{"ä" * 33} = ["cli:1"]'),
        ("people", '".." = ["cli:1"]'),
        ("channels.telegram", 'base_url = ""'),
        ("channels.discord", "enabled = true"),
        ("channels.discord", 'gateway_url = "http://x"'),
        ("channels.matrix", "enabled = false"),
        ("http", 'host = ""'),
        ("http", 'host = "0.0.0.0"'),
        ("http", 'host = "::"'),
        ("http", 'token = "a b"'),
        ("http", 'token = "a\\nb"'),
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
    assert read(tmp_path, '[http]\nhost = "0.0.0.0"\ntoken = "open-sesame-open"\n').http.host == "0.0.0.0"


@pytest.mark.parametrize(
    "line",
    [
        'token = "x"',
        'token = "123456789012345"',
        f'token = "{"abc-" * 8}"',
        'token = ""',
        'token_file = "away"',
        "token_file = 1",
    ],
)
def test_a_token_beyond_loopback_is_hard_to_guess(tmp_path: Path, line: str) -> None:
    """Under 16 characters, missing and not to be read are each one problem, with a cure; the exit is 78."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f'[http]\nhost = "0.0.0.0"\n{line}\n')

    assert caught.value.exit_code == 78
    assert len(caught.value.problems) == 1
    assert read(tmp_path, '[http]\ntoken = "x"\n').http.token.get_secret_value() == "x"
    if line.startswith("token = "):
        assert re.search("openssl rand|set token", caught.value.problems[0])


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


def test_the_files_of_tls_are_whole_paths(tmp_path: Path) -> None:
    """A relative one would mean another file in each folder that a verb is run in."""
    with pytest.raises(ConfigError, match=r"broker\.ca_file: expected an absolute path"):
        read(tmp_path, '[broker]\nca_file = "ca.pem"\n')


def test_an_address_of_the_broker_that_cannot_be_had_is_one_problem(tmp_path: Path) -> None:
    """It is not called no address as well."""
    (problem,) = problems(tmp_path, '[broker]\nurl_file = "gone"\n')

    assert problem.endswith("broker.url_file: " + f"{tmp_path / 'gone'}: No such file or directory")


def test_a_secret_without_an_end_is_none(tmp_path: Path) -> None:
    """A device is read no further than a secret may go."""
    (problem,) = problems(tmp_path, '[model]\napi_key_file = "/dev/zero"\n')

    assert problem.endswith(":2: model.api_key_file: /dev/zero is over 65536 bytes, too large for a secret")


def test_a_configuration_without_an_end_is_read_no_further_than_one_may_go(tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    endless.touch()
    os.truncate(endless, 2**42)

    with pytest.raises(ConfigError, match="endless: cannot be read: over 16777216 bytes"):
        load(endless, environ={})
    with pytest.raises(GatewayError, match="endless cannot be read: over 16777216 bytes"):
        edit.standing(endless, ("model",))
    with pytest.raises(OSError, match="over 16777216 bytes"):
        finding.named_files(endless, {})
    assert finding.glance(endless, None)[1] == {}
