"""The frame of the command line: help, usage, errors, exit codes, and what it prints."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from channels.errors import ChannelDown
from gateway.__main__ import main, run
from gateway.cli import output, parser
from gateway.errors import ConfigError, GatewayError, StateInUse, TopologyMismatch, Unreachable
from session.errors import NewerFormat, StoreError
from tests.gateway.cli_place import PROGRAM, command
from tests.support.harness import ROOT

SECRET = "sk-very-secret-key"


def fails(_: argparse.Namespace) -> int:
    """A verb that raises what the test has put into ``fails.error``."""
    raise FAULTS[0]


def prints_much(_: argparse.Namespace) -> int:
    for _number in range(100_000):
        output.data("x" * 100)
    return 0


FAULTS: list[BaseException] = []


def verb(name: str) -> argparse.Namespace:
    return argparse.Namespace(handler=f"{__name__}:{name}", config=Path(os.devnull), workspace=None)


def test_status_loads_nothing_of_a_turn(tmp_path: Path) -> None:
    """It shows figures and files: neither the model's side nor what answers a message is imported for it."""
    heavy = {"session.turn.turn", "session.context.request", "session.models.llm", "gateway.app.model"}
    code = (
        "import sys\nfrom gateway.__main__ import main\n"
        f"main(['--workspace', {str(tmp_path)!r}, 'status'])\n"
        f"sys.exit(repr(sorted({heavy!r} & set(sys.modules))))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "args", [["--help"], ["sessions", "--help"], ["chat", "--help"], ["run", "--role", "x"]]
)
def test_help_and_usage_load_nothing_heavy(args: list[str], tmp_path: Path) -> None:
    """Help is quick because no model, no loop, no log and no SDK is imported for it."""
    heavy = {"pydantic", "asyncio", "structlog", "litellm", "aio_pika", "fastapi", "orjson", "ssl", "email"}
    code = (
        "import sys\nfrom gateway.__main__ import main\n"
        f"try: main({args!r})\nexcept SystemExit: pass\n"
        f"sys.exit(repr(sorted({heavy!r} & set(sys.modules))))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.stderr.splitlines()[-1] == "[]"


def test_every_verb_names_its_code_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Each leaf of the tree has a handler and a help that ends well."""
    leaves = {
        "run": [],
        "chat": [],
        "status": [],
        "doctor": [],
        "sessions list": [],
        "sessions show": ["cli:direct"],
        "sessions new": ["cli:direct"],
        "sessions clear": ["cli:direct"],
        "sessions verify": [],
        "memory show": ["cli:direct"],
        "memory consolidate": ["cli:direct"],
        "parked list": [],
        "parked show": ["x"],
        "parked retry": ["x"],
        "parked drop": ["x"],
        "config show": [],
        "config check": [],
        "config path": [],
    }

    for leaf, values in leaves.items():
        module, _, function = parser.parse([*leaf.split(), *values]).handler.partition(":")
        assert module == f"gateway.cli.{leaf.split()[0]}"
        assert function.rstrip("_") == leaf.split()[-1]
        with pytest.raises(SystemExit) as ended:
            parser.parse([*leaf.split(), "--help"])
        assert ended.value.code == 0
        assert leaf in capsys.readouterr().out


def test_global_options_may_stand_before_and_after_the_verb() -> None:
    """Both orders mean the same; the later one wins."""
    before = parser.parse(["--config", "a", "--workspace", "w", "status"])
    after = parser.parse(["--config", "x", "status", "--config", "a", "--workspace", "w", "--json"])

    assert (before.config, before.workspace, before.json) == (Path("a"), Path("w"), False)
    assert (after.config, after.workspace, after.json) == (Path("a"), Path("w"), True)
    assert parser.parse(["status"]).config is None


def test_the_options_of_chat_and_run() -> None:
    """As documented, with their defaults."""
    chat = parser.parse(["chat"])
    asked = parser.parse(["chat", "-m", "-- hi", "--key", "telegram:1", "--timeout", "2.5"])

    assert (chat.message, chat.key, chat.timeout) == (None, "cli:direct", None)
    assert (asked.message, asked.key, asked.timeout) == ("-- hi", "telegram:1", 2.5)
    assert parser.parse(["run"]).role == "all"
    assert parser.parse(["run", "--role", "session"]).role == "session"


@pytest.mark.parametrize(
    ("args", "error", "advice"),
    [
        (["sesions"], "error: unknown command 'sesions'", "chat-gateway sessions"),
        (["sessions", "lst"], "unknown command 'lst'; choose from list, show", "chat-gateway sessions list"),
        (
            ["memory", "history", "cli:direct", "--file", "MEMORY"],
            "unknown --file 'MEMORY'; choose from MEMORY.md, USER.md, facts.jsonl",
            "chat-gateway memory history --file MEMORY.md",
        ),
        (
            ["systemd", "show", "tmpfiles"],
            "unknown NAME 'tmpfiles'; choose from chat-gateway.service, chat-gateway@.service",
            "chat-gateway systemd show tmpfiles.conf",
        ),
        (["sessions"], "required: COMMAND", "chat-gateway sessions --help"),
        (["run", "--role", "chanels"], "unknown --role 'chanels'", "chat-gateway run --role channels"),
        (["chat", "--timeout", "-1"], "'-1' is not a number of seconds above 0", "chat-gateway chat --help"),
        (
            ["chat", "--timeout", "nan"],
            "'nan' is not a number of seconds above 0",
            "chat-gateway chat --help",
        ),
        (["sessions", "show"], "required: KEY|ULID", "chat-gateway sessions show --help"),
        (["trace", "\udcff"], r"ID: '\udcff' is not UTF-8 text", "chat-gateway trace --help"),
        (["parked", "drop", "\udcff"], r"ID: '\udcff' is not", "chat-gateway parked drop --help"),
        (["status", "--jsn"], "unrecognized arguments: --jsn", "chat-gateway --help"),
    ],
)
def test_a_usage_that_makes_no_sense_exits_2(
    args: list[str], error: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what is wrong and what to type instead, on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(args)

    assert ended.value.code == 2
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second == f"try: {advice}"
    assert printed.out == ""


def test_the_version_is_the_installed_one(tmp_path: Path) -> None:
    """On stdout, exit 0."""
    done = command("--version", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("chat-gateway ")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (GatewayError("it broke", hint="a cure"), 1),
        (StateInUse("it broke", hint="a cure"), 73),
        (Unreachable("it broke", hint="a cure"), 69),
        (TopologyMismatch("it broke", hint="a cure"), 78),
        (NewerFormat("it broke", hint="a cure"), 78),
        (StoreError("it broke", hint="a cure"), 1),
        (ChannelDown("it broke", hint="a cure"), 1),
        (BaseExceptionGroup("tasks", [ValueError("x"), StateInUse("it broke", hint="a cure")]), 73),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [Unreachable("it broke", hint="a cure")])]), 69),
    ],
)
def test_a_foreseen_error_is_its_text_its_hint_and_its_code(
    fault: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also out of a task group, whose own text says nothing."""
    FAULTS[:] = [fault]

    assert run(verb("fails")) == code
    assert capsys.readouterr().err == "error: it broke\ntry: a cure\n"


def test_each_problem_of_the_configuration_is_an_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, then what to do."""
    FAULTS[:] = [ConfigError(["a.toml:1: x", "a.toml:2: y"])]

    assert run(verb("fails")) == 78
    assert capsys.readouterr().err == (
        "error: a.toml:1: x\nerror: a.toml:2: y\ntry: chat-gateway config check\n"
    )


def test_an_unforeseen_error_shows_no_secret_and_the_way_to_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line by default, the traceback on request, both clean; exit 1."""
    monkeypatch.setenv("CHAT_GATEWAY_MODEL__API_KEY", SECRET)
    FAULTS[:] = [KeyError(f"no {SECRET}")]

    assert run(verb("fails")) == 1
    plain = capsys.readouterr().err
    monkeypatch.setenv("CHAT_GATEWAY_DEBUG", "1")
    assert run(verb("fails")) == 1
    debug = capsys.readouterr().err

    assert plain.splitlines()[0] == "error: KeyError: 'no ***'"
    assert plain.splitlines()[1].startswith("try: CHAT_GATEWAY_DEBUG=1")
    assert "Traceback" not in plain
    assert "Traceback" in debug
    assert SECRET not in plain + debug


def test_ctrl_c_exits_130_without_a_word(tmp_path: Path) -> None:
    """A person who interrupts knows why it ended."""
    code = (
        "import argparse, signal, sys\nfrom gateway.__main__ import run\n"
        "def wait(_):\n"
        "    print('here', flush=True)\n"
        # A signal that comes just before ``pause`` would be slept over.
        "    while True: signal.sigtimedwait([], 1)\n"
        "sys.modules['waits'] = sys.modules['__main__']\n"
        "sys.exit(run(argparse.Namespace(handler='waits:wait')))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "here\n"
        program.send_signal(signal.SIGINT)
        _, words = program.communicate(timeout=30)

    assert (program.returncode, words) == (130, "")


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    """``sessions list | head -1`` shows no traceback."""
    code = (
        "import sys\nfrom gateway.__main__ import run\n"
        "from tests.gateway.cli.test_cli_frame import verb\nsys.exit(run(verb('prints_much')))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "x" * 100 + "\n"
        program.stdout.close()
        assert program.stderr is not None
        words = program.stderr.read()

    assert (program.returncode, words) == (0, "")


def buffered_into(stdout: int | IO[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Print the configuration there, by way of a buffer, as without ``PYTHONUNBUFFERED``."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [*PROGRAM, "config", "show"]
    return subprocess.run(
        words, cwd=cwd, env=buffered, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60
    )


def test_a_reader_that_was_never_there_ends_it_quietly(tmp_path: Path) -> None:
    """Output that still lies in the buffer when the pipe turns out to be broken makes no noise at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = buffered_into(writer, tmp_path)
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (0, "")


def test_output_onto_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """Data that could not be written is told once, and the exit code says so."""
    with Path("/dev/full").open("w") as full:
        done = buffered_into(full, tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("error: OSError: [Errno 28] No space left on device\ntry: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("shut", "words"),
    [
        (">&-", "config check"),
        ("2>&-", "config check"),
        (">&- 2>&- <&-", "config check"),
        (">&-", "backup create ../b.tar"),
        ("<&-", "chat -m hi"),
    ],
)
def test_a_stream_that_is_shut_ends_no_command(tmp_path: Path, shut: str, words: str) -> None:
    """Cron and daemons start programs so: what was done is no failure."""
    (tmp_path / "chat-gateway.toml").write_text('[model]\nname = "echo"\n')
    line = f"exec {sys.executable} -m gateway --workspace . {words} {shut}"

    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert words != "chat -m hi" or "hi" in done.stdout


def test_what_a_terminal_cannot_show_does_not_end_a_command(tmp_path: Path) -> None:
    """Text becomes question marks; JSON keeps what it was, as escapes."""
    code = (
        "from gateway.cli import output\n"
        "output.data('a\\ud800\\u00e4')\noutput.document({'x': '\\ud800\\u00e4'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )

    text, _, document = done.stdout.decode("ascii").partition("\n")
    assert text == "a??"
    assert json.loads(document) == {"x": "\ud800\u00e4"}


def test_rows_line_up_and_nothing_is_printed_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of foreign names cannot reach the terminal."""
    output.rows([], ["key"])
    output.rows(
        [{"key": "cli:a\x1b[2J", "parked_at": None}, {"key": "b", "parked_at": 3}], ["key", "parked_at"]
    )

    assert capsys.readouterr().out == "KEY        PARKED AT\ncli:a [2J\nb          3\n"


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("restart", "sudo systemctl restart chat-gateway"),
        ("sesions", "chat-gateway sessions"),
        ("init", "onboard"),
    ],
)
def test_a_word_that_is_no_verb_leads_to_what_is_meant(word: str, advice: str, tmp_path: Path) -> None:
    done = command(word, cwd=tmp_path)

    assert done.returncode == 2
    assert advice in done.stderr.splitlines()[-1]
