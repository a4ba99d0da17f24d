"""A person whose model cannot answer learns it at once, with the cure, and sees no log."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.doctor.checks import examine
from session.models.credentials import VARIABLES
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.support.model_server import ModelServer, Reply
from tests.system.terminal import PROMPTS, WITHIN_S, Terminal, command, daemon, environment, run, until_in

pytestmark = guarantee("failures", "A user whose model cannot answer learns at once how to fix it.")

UNREACHABLE = 69


def keyless(**extra: str) -> dict[str, str]:
    """Return the environment of somebody who set a model and forgot its key."""
    names = {name for group in VARIABLES.values() for name in group}
    kept = {name: value for name, value in environment(**extra).items() if name not in names}
    return {"CHAT_GATEWAY_MODEL__NAME": "openai/gpt-4.1-mini"} | kept


def served(server: ModelServer, **extra: str) -> dict[str, str]:
    return keyless(CHAT_GATEWAY_MODEL__NAME="openai/stub", CHAT_GATEWAY_MODEL__API_BASE=server.url, **extra)


def has_log(text: str) -> bool:
    return any(line.startswith("{") or "[warning" in line for line in text.splitlines())


def test_no_key_is_told_at_once_and_nothing_is_sent(tmp_path: Path) -> None:
    """Exit 69 with the variable's name, after less than two seconds of work; the message waits nowhere."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(tmp_path, "chat", "-m", "hello", env=keyless(), anew=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    queues = json.loads(run(tmp_path, "status", "--json", env=keyless()).stdout)["queues"]

    assert (done.returncode, done.stdout) == (UNREACHABLE, "")
    assert "try: set OPENAI_API_KEY, or model.api_key_file" in done.stderr
    assert not has_log(done.stderr)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    # Without a queue nothing can wait.
    assert not queues or queues["inbound"]["count"] == 0


async def test_a_wait_that_is_too_short_tells_why_as_well(tmp_path: Path) -> None:
    async with ModelServer() as server:
        server.away = True
        done = await asyncio.to_thread(
            run, tmp_path, "chat", "-m", "hello", "--timeout", "3", env=served(server)
        )

    assert (done.returncode, done.stdout) == (1, "")
    assert "no reply within 3 s" in done.stderr
    assert "error: the language model does not answer (" in done.stderr


def test_a_daemon_without_a_key(tmp_path: Path) -> None:
    """The daemon starts, shows its model as down from the start, and every `chat -m` says why."""
    with daemon(tmp_path, keyless()):
        done = run(tmp_path, "chat", "-m", "hello", env=keyless(OPENAI_API_KEY="of-this-shell-alone"))
        status = run(tmp_path, "status", env=keyless())
        command_answered = run(tmp_path, "chat", "-m", "/help", env=keyless())

    assert (done.returncode, done.stdout) == (UNREACHABLE, "")
    assert "OPENAI_API_KEY, or model.api_key_file; then restart the gateway" in done.stderr
    assert "model: down (openai/gpt-4.1-mini: no API key)" in status.stdout
    assert command_answered.returncode == 0
    assert "/stop" in command_answered.stdout


@pytest.mark.parametrize("attached", [True, False])
async def test_what_the_provider_refuses_tells_the_operator_why(tmp_path: Path, attached: bool) -> None:
    """Of a message its reason and what puts it back; a key ends the wait with 69, and the message is kept."""
    async with ModelServer() as server:
        env = served(server)

        async def said(text: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(run, tmp_path, "chat", "-m", text, env=env)

        server.script += [Reply(status=404)] * 4
        with daemon(tmp_path, env) if attached else nullcontext():
            refused = await said("hello")
            server.script.clear()
            done = await said("hi [[status:401]]")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "error: " in refused.stderr
    assert "404" in refused.stderr
    assert "try: chat-gateway parked retry cli:" in refused.stderr
    assert (done.returncode, done.stdout) == (UNREACHABLE, "")
    assert "(credentials)" in done.stderr
    assert "try: set OPENAI_API_KEY" in done.stderr
    assert "the message is kept" in done.stderr
    assert not has_log(done.stderr)
    if not attached:
        assert '"model.away"' in (tmp_path / "state" / "chat.log").read_text()
        assert f"details are in {tmp_path / 'state' / 'chat.log'}" in done.stderr


@pytest.mark.parametrize(
    ("status", "cure"),
    [(401, "OPENAI_API_KEY"), (404, "model.api_base"), (402, "add credit"), (400, "correct model.name")],
)
async def test_doctor_fails_with_the_cure(tmp_path: Path, status: int, cure: str) -> None:
    """A wrong key, an unknown model and an empty account are failures of the model."""
    async with ModelServer() as server:
        server.script.extend([Reply(status=status)] * 4)
        model = {"name": "openai/stub", "api_base": server.url}
        settings = Settings.model_validate({"workspace": tmp_path, "model": model})
        (found,) = [check async for check in examine(settings) if check.name == "model"]

    assert found.level == "fail"
    assert cure in found.cure


# Imports the model's library more slowly than the doctor, made impatient, waits for an answer.
SLOW_MACHINE = """
import asyncio, importlib.abc, sys, time
from pathlib import Path

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "litellm":
            time.sleep(8)

sys.meta_path.insert(0, Slow())
from gateway.config.settings import Settings
from gateway.doctor import checks, services

async def main():
    services.MODEL_S = 6.0
    stub = {"name": "openai/stub", "api_base": sys.argv[2], "api_key": "any"}
    settings = Settings.model_validate({"workspace": Path(sys.argv[1]), "model": stub})
    print(*[check.text async for check in checks.examine(settings) if check.name == "model"])

asyncio.run(main())
"""


async def test_doctor_does_not_blame_the_model_for_a_slow_machine(tmp_path: Path) -> None:
    """Only the request is timed: the import of the library before it may take longer."""
    async with ModelServer() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SLOW_MACHINE, str(tmp_path), server.url),
            cwd=ROOT,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)

    assert told.decode() == "openai/stub answers\n"


def test_doctor_names_the_variable_and_the_impossible_model(tmp_path: Path) -> None:
    """Neither needs a network: a key that is missing, and a name that no provider has."""
    checks = {}
    for name in ("openai/gpt-4.1-mini", "no-such-model"):
        done = run(tmp_path, "doctor", "--json", env=keyless() | {"CHAT_GATEWAY_MODEL__NAME": name})
        (checks[name],) = [check for check in json.loads(done.stdout) if check["name"] == "model"]

    assert [check["level"] for check in checks.values()] == ["fail", "fail"]
    assert "OPENAI_API_KEY" in checks["openai/gpt-4.1-mini"]["cure"]
    assert "correct model.name" in checks["no-such-model"]["cure"]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(command(tmp_path, "chat"), tmp_path, keyless(TERM="dumb"))
    yield opened
    opened.close()


def test_no_log_in_a_conversation(terminal: Terminal, tmp_path: Path) -> None:
    """The terminal shows why at the start, the notice once it is asked, and never a line of the log."""
    terminal.until("try: set OPENAI_API_KEY")
    terminal.until(PROMPTS["dumb"])
    terminal.write("hello\n")
    terminal.until("not available right now (credentials)")
    log = tmp_path / "state" / "chat.log"
    until_in(log, "model.away")

    assert "model.away" not in terminal.seen
