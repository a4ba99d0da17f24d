"""The frame of the command line: help, usage, errors, exit codes, and what it prints."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import pytest

from channels.errors import ChannelDown
from gateway.__main__ import main, run
from gateway.cli import output
from gateway.cli.root import COMMANDS, GlobalOptions, cli
from gateway.errors import GatewayError, StateInUse, TopologyMismatch, Unreachable
from session.errors import NewerFormat, StoreError
from tests.gateway.cli_place import PROGRAM, command
from tests.support.command_line import parsed
from tests.support.harness import ROOT

SECRET = "sk-very-secret-key"


def fails(_: GlobalOptions) -> int:
    """A verb that raises what the test has put into ``fails.error``."""
    raise FAULTS[0]


FAULTS: list[BaseException] = []


@pytest.mark.parametrize(
    ("args", "modules"),
    [
        (["--help"], {"asyncio", "gateway.errors", "gateway.cli.output", "email"}),
        (["sesions"], {"asyncio", "gateway.errors", "gateway.cli.output", "email"}),
        # It shows figures and files: neither the model's side nor what answers a message.
        (
            ["status"],
            {
                "session.turn.turn",
                "session.context.request",
                "session.models.llm",
                "gateway.app.wiring_model",
            },
        ),
    ],
)
def test_a_command_imports_no_more_than_it_needs(args: list[str], modules: set[str], tmp_path: Path) -> None:
    assert loaded([args], modules, tmp_path) == {}


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    """A shell completes at each press of a key, so no model, no log and no SDK is imported for it."""
    heavy = {"pydantic", "structlog", "litellm", "aiormq", "fastapi", "httpx", "rich", "prompt_toolkit"}

    assert loaded([[command, "--help"] for command in COMMANDS], heavy, tmp_path) == {}


def loaded(lines: list[list[str]], modules: set[str], cwd: Path) -> dict[str, list[str]]:
    """Return the first of the command lines that imports any of the modules, with those."""
    code = (
        "import sys\nfrom gateway.__main__ import main\nfound = {}\n"
        f"for line in {lines!r}:\n    main(['--workspace', '.', *line])\n"
        f"    have = sorted({modules!r} & set(sys.modules))\n"
        "    found = found or ({str(line): have} if have else {})\n"
        "sys.exit(repr(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60)
    found: dict[str, list[str]] = ast.literal_eval(done.stderr.splitlines()[-1])
    return found


def test_each_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the tree is found where the root says, and has a help."""
    paths = list(_paths(click.Context(cli, info_name="chat-gateway")))

    assert len(paths) > 60
    for path in paths:
        assert main([*path.split()[1:], "--help"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"Usage: {path} "), path
        assert printed.partition("\n\n")[2].strip()[:1].isupper(), path


def _paths(context: click.Context) -> Iterator[str]:
    yield context.command_path
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            _, command, _ = context.command.resolve_command(context, [name])
            assert command is not None
            yield from _paths(click.Context(command, context, name))


def test_global_options_may_stand_before_and_after_the_verb() -> None:
    """Both orders mean the same; the later one wins."""
    before = parsed(["--config", "a", "--workspace", "w", "status"])
    after = parsed(["--config", "x", "status", "--config", "a", "--workspace", "w", "--json"])

    assert (before.config, before.workspace, before.as_json) == (Path("a"), Path("w"), False)
    assert (after.config, after.workspace, after.as_json) == (Path("a"), Path("w"), True)
    assert parsed(["status"]).config is None


@pytest.mark.parametrize(
    ("args", "error", "advice"),
    [
        (["sesions"], "No such command 'sesions'", "chat-gateway sessions"),
        (["sessions"], "Missing command", "chat-gateway sessions --help"),
        (["sessions", "lst"], "No such command 'lst'", "chat-gateway sessions list"),
        (
            ["memory", "history", "a:b", "--file", "X"],
            "'X' is not one of",
            "chat-gateway memory history --help",
        ),
        (["systemd", "show", "tmpfiles"], "'tmpfiles' is not one of", "chat-gateway systemd show --help"),
        (["run", "--role", "x"], "'x' is not one of 'all', 'channels'", "chat-gateway run --help"),
        (["run", "--workers", "-1"], "'--workers': -1 is not in the range x>=0", "chat-gateway run --help"),
        (["usage", "--days", "0"], "'--days': 0 is not in the range x>=1", "chat-gateway usage --help"),
        (["chat", "--timeout", "-1"], "'-1' is not a number of seconds above 0", "chat-gateway chat --help"),
        (["chat", "--timeout", "nan"], "'nan' is not a number of seconds", "chat-gateway chat --help"),
        (["chat", "hello", "there"], "unexpected words: hello there", "chat-gateway chat -m 'hello there'"),
        (["chat", "how", "are you?", "--key", "cli:x"], "how", "chat-gateway chat -m 'how are you?'"),
        (["chat", "-m", "hello", "you"], "you", "chat-gateway chat --help"),
        (["chat", "--mesage", "hello"], "--mesage", "chat-gateway chat --message"),
        (["sessions", "show"], "Missing argument 'KEY|ULID'", "chat-gateway sessions show --help"),
        (["trace", "\udcff"], r"'ID': '\udcff' is not UTF-8 text", "chat-gateway trace --help"),
        (["parked", "drop", "\udcff"], r"'ID': '\udcff' is not", "chat-gateway parked drop --help"),
        (["status", "--jsn"], "No such option '--jsn'", "chat-gateway status --json"),
        (["status", "now"], "unexpected extra argument (now)", "chat-gateway status --help"),
        (["memory", "export"], "exactly one of KEY and --person", "chat-gateway memory export --help"),
        (["memory", "erase", "a:b", "--person", "c"], "KEY and --person", "chat-gateway memory erase --help"),
    ],
)
def test_a_usage_that_makes_no_sense_exits_2(
    args: list[str], error: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what is wrong and what to type instead, on stderr."""
    assert main(args) == 2

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

    assert run(fails) == code
    assert capsys.readouterr().err == "error: it broke\ntry: a cure\n"


def test_an_unforeseen_error_shows_no_secret_and_the_way_to_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line by default, the traceback on request, both clean; exit 1."""
    monkeypatch.setenv("CHAT_GATEWAY_MODEL__API_KEY", SECRET)
    FAULTS[:] = [KeyError(f"no {SECRET}")]

    assert run(fails) == 1
    plain = capsys.readouterr().err
    monkeypatch.setenv("CHAT_GATEWAY_DEBUG", "1")
    assert run(fails) == 1
    debug = capsys.readouterr().err

    assert plain.splitlines()[0] == "error: KeyError: 'no ***'"
    assert plain.splitlines()[1].startswith("try: CHAT_GATEWAY_DEBUG=1")
    assert "Traceback" not in plain
    assert "Traceback" in debug
    assert SECRET not in plain + debug


def test_ctrl_c_exits_130_without_a_word(tmp_path: Path) -> None:
    """A person who interrupts knows why it ended."""
    code = (
        "import signal, sys\nfrom gateway.__main__ import run\n"
        "def wait(_):\n"
        "    print('here', flush=True)\n"
        # A signal that comes just before ``pause`` would be slept over.
        "    while True: signal.sigtimedwait([], 1)\n"
        "sys.exit(run(wait))"
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


@pytest.mark.parametrize("argv", [[], ["--workspace", "/somewhere"]])
def test_the_bare_program_names_the_first_commands(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A short help on stderr, exit 2, no error."""
    code = main(argv)
    out, words = capsys.readouterr()

    assert (code, out) == (2, "")
    assert "error" not in words
    assert [line.split()[1] for line in words.splitlines() if line.startswith("  chat-gateway")] == [
        "onboard",
        "run",
        "chat",
        "doctor",
    ]
    assert len(words.splitlines()) < 12


@pytest.mark.parametrize(
    ("word", "advice"), [("restart", "sudo systemctl restart chat-gateway"), ("init", "onboard")]
)
def test_a_word_that_is_no_verb_leads_to_what_is_meant(
    word: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 2
    assert advice in capsys.readouterr().err.splitlines()[-1]
