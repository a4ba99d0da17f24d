"""The command line as a person meets it: `chat`, `status` and `parked`, with a daemon and without."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from gateway.app.daemons import DaemonRegistry
from tests.gateway.cli_place import session_file
from tests.system.terminal import PROMPTS, WITHIN_S, Terminal, command, daemon, environment, run, until_in

# -- the four situations -----------------------------------------------------------------------------


def test_messages_to_a_running_daemon(tmp_path: Path) -> None:
    """The reply alone is on stdout, whatever the key; lines of a pipe are messages; a notice is marked."""
    imported = session_file(tmp_path / "heartbeat.jsonl", "heartbeat", "tick")
    home = tmp_path / "w"
    home.mkdir()
    taken = run(home, "sessions", "import", "--from", "nanobot", str(imported))
    with daemon(home) as process:
        first = run(home, "chat", "-m", "hello")
        status = json.loads(run(home, "status", "--json").stdout)
        shown_status = run(home, "status").stdout
        doctor = json.loads(run(home, "doctor", "--json").stdout)
        other = run(home, "chat", "-m", "hi", "--key", "telegram:123")
        slip = run(home, "chat", "-m", "hi", "--key", "heartbeet")
        told = run(home, "chat", "-m", "there?", "--key", "heartbeat")
        typed = run(home, "chat", "--key", "heartbeat", stdin="again?\n")
        piped = run(home, "chat", stdin="one\ntwo\\\nlines\n\nlast")
        too_large = run(home, "chat", stdin="x" * (2**20 + 1))
    rows = json.loads(run(home, "sessions", "list", "--json").stdout)
    shown = json.loads(run(home, "sessions", "show", "heartbeat", "--json").stdout)

    assert taken.returncode == 0, taken.stderr
    assert (first.returncode, first.stdout) == (0, "echo: hello\n")
    assert "echo" in first.stderr
    assert (status["usage_today"]["turns"], status["running"], status["pid"]) == (1, True, process.pid)
    assert "gateway: ready" in shown_status
    queue = next(check for check in doctor if check["name"] == "broker")
    assert (queue["level"], f"pid {process.pid}" in queue["text"]) == ("ok", True)
    assert (other.returncode, other.stdout) == (0, "echo: hi\n")
    # A key without a colon goes on, and by nobody's slip begins a session.
    assert (slip.returncode, slip.stdout) == (1, "")
    assert "try: a key is channel:chat_id" in slip.stderr
    assert (told.returncode, told.stdout) == (0, "echo: there?\n"), told.stderr
    assert typed.stdout.count("echo: again?") == 1
    assert {row["key"] for row in rows} == {"cli:direct", "heartbeat", "telegram:123"}
    said = ["tick", "there?", "echo: there?", "again?", "echo: again?"]
    assert [line["content"] for line in shown["messages"]] == said
    assert (piped.returncode, piped.stdout) == (0, "echo: one\necho: two\nlines\necho: last\n")
    assert "! " in too_large.stdout
    assert "1 MiB" in too_large.stdout


def test_one_message_without_a_daemon(tmp_path: Path) -> None:
    """Without a daemon `chat -m` works in its own process, opens no port, and keeps the conversation.

    `status` says that none runs, and reads what waits.
    """
    empty = run(tmp_path, "status")
    first = run(tmp_path, "chat", "-m", "hello")
    resting = json.loads(run(tmp_path, "status", "--json").stdout)

    assert (first.returncode, first.stdout) == (0, "echo: hello\n"), first.stderr
    assert "echo" in first.stderr
    assert "ready" not in first.stderr
    assert DaemonRegistry(tmp_path).running() == []
    assert empty.returncode == 0
    assert "the gateway is not running" in empty.stderr
    assert (resting["running"], resting["queues"]["inbound"]["count"]) == (False, 0)
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
    assert f"(pid {process.pid})" in done.stderr
    assert "try: " in done.stderr


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


def test_wrong_token(tmp_path: Path) -> None:
    """A daemon that asks for another token refuses, and the hint names the key."""
    with daemon(tmp_path, environment(CHAT_GATEWAY_HTTP__TOKEN="right-token")):
        right = run(tmp_path, "chat", "-m", "hi", env=environment(CHAT_GATEWAY_HTTP__TOKEN="right-token"))
        wrong = run(tmp_path, "chat", "-m", "hi", env=environment(CHAT_GATEWAY_HTTP__TOKEN="wrong-token"))

    assert (right.returncode, right.stdout) == (0, "echo: hi\n")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "http.token" in wrong.stderr


# -- a conversation ----------------------------------------------------------------------------------


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
    with daemon(tmp_path, environment(**slow)) if attached else nullcontext():
        chat = terminal(TERM=term, **slow)
        chat.until(prompt)
        chat.write("hello\r" if term != "dumb" else "hello\n")
        # The turn runs.
        until_in(tmp_path / "sessions" / "cli_direct.jsonl", "hello")
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
        beside = run(tmp_path, "parked", "show", row["id"], "--json")
        put_back = run(tmp_path, "parked", "retry", row["id"])
        _until_parked(tmp_path)
        dropped = run(tmp_path, "parked", "drop", row["id"])
        unknown = run(tmp_path, "parked", "drop", row["id"])
        listed = run(tmp_path, "parked", "list")

    assert (row["key"], row["box"], shown["id"]) == ("cli:direct", "inbound", row["id"])
    assert large in shown["body"]
    assert (retried.returncode, after_retry) == (0, [])
    assert again["id"] == row["id"]
    assert (json.loads(beside.stdout)["id"], put_back.returncode) == (row["id"], 0)
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
