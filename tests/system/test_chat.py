"""The command line as a person meets it: `chat`, `status` and `parked`, with a daemon and without."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.app.daemons import DaemonRegistry
from tests.support import forked
from tests.system.terminal import PROMPTS, WITHIN_S, Terminal, command, daemon, environment, run, until_in


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    with daemon(tmp_path):
        yield tmp_path


# -- the four situations -----------------------------------------------------------------------------


def test_one_message_to_a_running_daemon(running: Path) -> None:
    """`chat -m` attaches: the reply alone is on stdout, and the conversation is the daemon's."""
    first = run(running, "chat", "-m", "hello")
    status = json.loads(run(running, "status", "--json").stdout)

    assert (first.returncode, first.stdout) == (0, "echo: hello\n")
    assert "echo" in first.stderr
    assert status["usage_today"]["turns"] == 1


def test_one_message_without_a_daemon(tmp_path: Path) -> None:
    """Without a daemon `chat -m` works in its own process, opens no port, and keeps the conversation."""
    first = run(tmp_path, "chat", "-m", "hello")

    assert (first.returncode, first.stdout) == (0, "echo: hello\n"), first.stderr
    assert "echo" in first.stderr
    assert "ready" not in first.stderr
    assert DaemonRegistry(tmp_path).running() == []
    assert "echo: hello" in (tmp_path / "sessions" / "cli_direct.jsonl").read_text()


def test_no_daemon_on_rabbitmq(tmp_path: Path) -> None:
    """On RabbitMQ there is no conversation without a daemon: exit 69, and what to do."""
    done = run(
        tmp_path, "chat", "-m", "hello", env=environment(CHAT_GATEWAY_BROKER__URL="amqp://127.0.0.1:1/")
    )

    assert (done.returncode, done.stdout) == (69, "")
    assert "chat-gateway run" in done.stderr


def test_daemon_that_does_not_answer(tmp_path: Path) -> None:
    """Where a daemon holds the state but does not answer, nothing is broken open: exit 73."""
    with daemon(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        done = run(tmp_path, "chat", "-m", "hello")

    assert (done.returncode, done.stdout) == (73, "")
    assert "RabbitMQ" in done.stderr


# -- one message -------------------------------------------------------------------------------------


@pytest.mark.parametrize("attached", [True, False])
def test_timeout(tmp_path: Path, attached: bool) -> None:
    """When the time runs out it says that the message is kept (exit 1); it is answered later, not twice."""
    if attached:
        env = environment(CHAT_GATEWAY_MODEL__ECHO_DELAY_S="5")
        with daemon(tmp_path, env):
            late = run(tmp_path, "chat", "-m", "one", "--timeout", "0.4", env=env)
            after = run(tmp_path, "chat", "-m", "two", env=env)
    else:
        never = environment(CHAT_GATEWAY_MODEL__ECHO_DELAY_S="600")
        late = run(tmp_path, "chat", "-m", "one", "--timeout", "0.4", env=never)
        after = run(tmp_path, "chat", "-m", "two")

    assert (late.returncode, late.stdout) == (1, "")
    assert "kept" in late.stderr
    assert (after.returncode, after.stdout) == (0, "echo: two\n")
    transcript = (tmp_path / "sessions" / "cli_direct.jsonl").read_text()
    assert transcript.count("echo: one") == 1


def test_notice_instead_of_a_reply(running: Path) -> None:
    """What is a notice goes to stderr, and the command fails."""
    done = run(running, "chat", "-m", "x" * 100, "--key", "web:a" + "b" * 10)
    too_large = forked.run(
        command(running, "chat"),
        input="x" * (2**20 + 1),
        text=True,
        timeout=WITHIN_S,
        env=environment(),
    )

    assert done.stdout == f"echo: {'x' * 100}\n"
    assert "! " in too_large.stdout
    assert "1 MiB" in too_large.stdout


def test_any_key(running: Path) -> None:
    """`--key` takes any key, and prints the reply; what is no key is said."""
    other = run(running, "chat", "-m", "hi", "--key", "telegram:123")
    bad = run(running, "chat", "-m", "hi", "--key", "nothing")

    assert (other.returncode, other.stdout) == (0, "echo: hi\n")
    assert bad.returncode == 1
    assert "try:" in bad.stderr


def test_wrong_token(tmp_path: Path) -> None:
    """A daemon that asks for another token refuses, and the hint names the key."""
    with daemon(tmp_path, environment(CHAT_GATEWAY_HTTP__TOKEN="right-token")):
        right = run(tmp_path, "chat", "-m", "hi", env=environment(CHAT_GATEWAY_HTTP__TOKEN="right-token"))
        wrong = run(tmp_path, "chat", "-m", "hi", env=environment(CHAT_GATEWAY_HTTP__TOKEN="wrong-token"))

    assert (right.returncode, right.stdout) == (0, "echo: hi\n")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "http.token" in wrong.stderr


# -- a conversation ----------------------------------------------------------------------------------


def test_conversation_through_a_pipe(running: Path) -> None:
    """Lines that are piped in are messages, one after the other; a backslash joins two lines."""
    done = run(running, "chat", stdin="one\ntwo\\\nlines\n\nlast")

    assert (done.returncode, done.stdout) == (0, "echo: one\necho: two\nlines\necho: last\n")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(**env: str) -> Terminal:
        opened.append(Terminal(command(tmp_path, "chat"), tmp_path, environment(**env)))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize(("term", "attached"), [("xterm", False), ("dumb", False), ("xterm", True)])
def test_ctrl_c_stops_the_turn(
    tmp_path: Path, terminal: Callable[..., Terminal], term: str, attached: bool
) -> None:
    """Ctrl-C during a turn stops that turn, and the conversation goes on; Ctrl-D leaves with exit 0."""
    slow, prompt = {"CHAT_GATEWAY_MODEL__ECHO_DELAY_S": "20"}, PROMPTS[term]
    with daemon(tmp_path, environment(**slow)) if attached else _nothing():
        chat = terminal(TERM=term, **slow)
        chat.until(prompt)
        chat.write("hello\r" if term != "dumb" else "hello\n")
        _until_stored(tmp_path, "hello")
        chat.write("\x03")
        chat.until("! Stopped")
        chat.until(prompt)
        chat.write("/help\r" if term != "dumb" else "/help\n")
        chat.until("/stop")
        chat.until(prompt)
        chat.write("\x04")
        code = chat.process.wait(WITHIN_S)

    assert code == 0
    lines = (tmp_path / "sessions" / "cli_direct.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["stopped"] is True


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _until_stored(workspace: Path, text: str) -> None:
    """Wait until the user line is on disk: the turn runs."""
    until_in(workspace / "sessions" / "cli_direct.jsonl", text)


def test_history_and_lines(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    """Alt-Enter begins a new line of the same message; what was typed is kept, for nobody else to read."""
    chat, prompt = terminal(TERM="xterm"), PROMPTS["xterm"]
    chat.until(prompt)
    chat.write("first\x1b\rsecond\r")
    chat.until("echo: first")
    chat.until(prompt)
    chat.write("\x04")

    assert chat.process.wait(WITHIN_S) == 0
    history = tmp_path / "state" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+first\n+second\n" in history.read_text()
    assert "first\\nsecond" in (tmp_path / "sessions" / "cli_direct.jsonl").read_text()


# -- looking -----------------------------------------------------------------------------------------


def test_status_with_and_without_a_daemon(tmp_path: Path) -> None:
    """`status` shows the running daemon; without one it reads what waits, and says that none runs."""
    empty = run(tmp_path, "status")
    run(tmp_path, "chat", "-m", "hello")
    resting = run(tmp_path, "status", "--json")
    with daemon(tmp_path) as process:
        shown = run(tmp_path, "status")
        as_json = json.loads(run(tmp_path, "status", "--json").stdout)

    assert empty.returncode == 0
    assert "the gateway is not running" in empty.stderr
    assert not (tmp_path / "state" / "gateway.db").exists() or resting.returncode == 0
    assert json.loads(resting.stdout)["running"] is False
    assert json.loads(resting.stdout)["queues"]["inbound"]["count"] == 0
    assert "gateway: ready" in shown.stdout
    assert (as_json["running"], as_json["pid"]) == (True, process.pid)


def test_parked_with_and_without_a_daemon(tmp_path: Path) -> None:
    """A parked letter is listed, shown, put back and dropped, whether a daemon runs or not."""
    large = "x" * (2**20 + 1)
    run(tmp_path, "chat", stdin=large)

    (row,) = json.loads(run(tmp_path, "parked", "list", "--json").stdout)
    shown = json.loads(run(tmp_path, "parked", "show", row["id"], "--json").stdout)
    retried = run(tmp_path, "parked", "retry", row["id"])
    after_retry = json.loads(run(tmp_path, "parked", "list", "--json").stdout)
    with daemon(tmp_path):
        again = _until_parked(tmp_path)
        dropped = run(tmp_path, "parked", "drop", row["id"])
        unknown = run(tmp_path, "parked", "drop", row["id"])
        listed = run(tmp_path, "parked", "list")

    assert (row["key"], row["box"], shown["id"]) == ("cli:direct", "inbound", row["id"])
    assert large in shown["body"]
    assert (retried.returncode, after_retry) == (0, [])
    assert again["id"] == row["id"]
    assert (dropped.returncode, unknown.returncode) == (0, 1)
    assert "try:" in unknown.stderr
    assert (listed.returncode, listed.stdout) == (0, "")


def _until_parked(workspace: Path) -> dict[str, object]:
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        rows: list[dict[str, object]] = json.loads(run(workspace, "parked", "list", "--json").stdout)
        if rows:
            return rows[0]
    raise AssertionError("nothing was parked")


def test_sigterm_with_an_open_stream(tmp_path: Path) -> None:
    """An open event stream does not hold up the end of the daemon: it ends itself, and is not cut off."""
    with daemon(tmp_path) as process:
        (one,) = DaemonRegistry(tmp_path).running()
        script = (
            f"import urllib.request as u\nr = u.urlopen('{one.url}v1/events?key=web:a')\n"
            "print(r.readline(), flush=True)\nr.read()"
        )
        looking = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        try:
            assert looking.stdout is not None
            looking.stdout.readline()
            process.send_signal(signal.SIGTERM)
            code = process.wait(WITHIN_S)
            looked = looking.wait(WITHIN_S)
        finally:
            looking.kill()
            looking.communicate()

    assert (code, looked) == (0, 0)
