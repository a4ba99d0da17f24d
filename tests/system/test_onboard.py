"""`onboard` leads from nothing to the first answer in a real chat, and goes on where it stopped."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.daemons import DaemonRegistry
from tests.support import forked
from tests.support.broker import Broker
from tests.support.discord_server import DiscordServer
from tests.support.guarantee import guarantee
from tests.support.model_server import ModelServer, Reply
from tests.support.telegram_server import TelegramServer
from tests.system.terminal import WITHIN_S, Terminal, command, environment

ADA = 12345678
OTHER = 87654321
Open = Callable[..., Terminal]


@pytest.fixture
def onboard(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*args: str) -> Terminal:
        words = ("--config", str(tmp_path / "config.toml"), "onboard", *args)
        opened.append(Terminal(command(tmp_path / "w", *words), tmp_path, environment(TERM="xterm")))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


class Person:
    """Answers questions in a thread, so that the servers of the test go on."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def sees(self, text: str) -> None:
        await asyncio.to_thread(self._terminal.until, text)

    async def answers(self, question: str, answer: str) -> None:
        await self.sees(question)
        self._terminal.write(f"{answer}\r")

    async def leaves(self) -> int:
        return await asyncio.to_thread(self._terminal.process.wait, WITHIN_S)


def written(tmp_path: Path, model: ModelServer, table: str) -> Path:
    """Write a configuration with comments, as a person has it."""
    file = tmp_path / "config.toml"
    (tmp_path / "w").mkdir(exist_ok=True)
    file.write_text(
        f'# mine\n[model]\nname = "echo"  # for now\napi_base = "{model.url}"\n\n# the bot\n{table}\n'
    )
    return file


def telegram(server: TelegramServer) -> str:
    return (
        f'[channels.telegram]\nbase_url = "{server.base_url}" # local\n'
        f'base_file_url = "{server.base_file_url}"\npoll_timeout_s = 1\n'
    )


def read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


async def test_from_nothing_to_the_first_answer(
    tmp_path: Path, onboard: Open, broker: Broker, broker_name: str
) -> None:
    """A wrong key and a wrong token are asked for again; strangers stay outside; the owner is answered."""
    async with TelegramServer() as server, ModelServer() as model:
        table = (
            f'{telegram(server)}\n[broker]\nurl = "{broker.url}"\nname = "{broker_name}"\npartitions = 2\n'
        )
        file = written(tmp_path, model, table)
        model.script.append(Reply(status=401))
        person = Person(onboard())
        await person.answers("LiteLLM model name", "openai/stub")
        await person.answers("API key", "wrong-key")
        await person.sees("error:")
        # The key was wrong, so the key is asked for, and not in the words of a file.
        await person.answers("API key", "right-key")
        await person.sees("tokens")
        await person.answers("platform", "telegram")
        await person.answers("bot token", "1:wrong")
        await person.sees("error:")
        await person.answers("bot token", server.token)
        await person.sees("@gate_test_bot")
        await person.answers("systemd unit", "")
        await person.sees("Now write to the bot")
        server.write(OTHER, "me!")
        await person.answers(f"telegram:{OTHER}", "n")
        await person.sees("was not approved")
        server.write(ADA, "it is me")
        await person.answers(f"telegram:{ADA}", "y")
        await person.sees("Write to it once more")
        await server.said(ADA, lambda sent: "You are approved" in sent.text)
        server.write(ADA, "hello")
        await server.said(ADA, lambda sent: sent.text == "stub: hello")
        await person.sees(f"Answer in telegram:{ADA}: stub: hello")
        code = await person.leaves()

    assert code == 0
    text, found = file.read_text(), read(file)
    assert all(
        comment in text
        for comment in ("# mine\n", "# for now\n", "# the bot\n[channels.telegram]", "# local\n")
    )
    assert (found["model"]["name"], found["channels"]["telegram"]["enabled"]) == ("openai/stub", True)
    assert "right-key" not in text
    assert server.token not in text
    for name, secret in (
        (found["model"]["api_key_file"], "right-key"),
        (found["channels"]["telegram"]["token_file"], server.token),
    ):
        kept = tmp_path / name
        assert kept.read_text() == f"{secret}\n"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@guarantee(
    "operation", "Ctrl-C in `onboard` leaves every file complete, and the next run continues from there."
)
async def test_it_goes_on_where_ctrl_c_stopped_it(tmp_path: Path, onboard: Open) -> None:
    """What was written stays whole, what was tried and not written is not there, and the rest is asked."""
    async with TelegramServer() as server, ModelServer() as model:
        file = written(tmp_path, model, telegram(server))
        before = file.read_bytes()
        first = onboard()
        person = Person(first)
        await person.answers("LiteLLM model name", "openai/stub")
        await person.sees("API key")
        first.write("\x03")
        assert await person.leaves() == 130
        assert file.read_bytes() == before
        assert not (tmp_path / "secrets").exists()

        second = onboard()
        person = Person(second)
        await person.answers("LiteLLM model name", "openai/stub")
        await person.answers("API key", "the-key")
        await person.answers("platform", "telegram")
        await person.answers("bot token", server.token)
        await person.answers("systemd unit", "")
        await person.sees("Now write to the bot")
        second.write("\x03")
        assert await person.leaves() == 130

        third = onboard()
        person = Person(third)
        await person.answers("[openai/stub]", "")
        await person.answers("API key", "")
        await person.sees("@gate_test_bot")
        await person.answers("systemd unit", "")
        await person.sees("Now write to the bot")
        server.write(ADA, "it is me")
        await person.answers(f"telegram:{ADA}", "y")
        await server.said(ADA, lambda sent: "You are approved" in sent.text)
        server.write(ADA, "hello")
        await person.sees(f"Answer in telegram:{ADA}: stub: hello")
        assert await person.leaves() == 0

    assert model.seen[-1].headers["authorization"] == "Bearer the-key"


async def test_beside_a_gateway_that_runs(tmp_path: Path, onboard: Open) -> None:
    """A wrong answer alone is asked for again; the person is told what to press; nothing typed is echoed."""
    async with TelegramServer() as server, ModelServer() as model:
        file = tmp_path / "config.toml"
        file.write_text(f"[http]\nport = 0\n{telegram(server)}")
        words = command(tmp_path / "w", "--config", str(file), "run")
        running = Terminal(words, tmp_path, environment(TERM="xterm"))
        try:
            await asyncio.to_thread(running.until, "ready http")
            terminal = onboard()
            person = Person(terminal)
            await person.sees("5 Ollama")
            await person.answers("number of a provider", "claude")
            await person.sees("no provider is known for 'claude'")
            # What was refused is not offered.
            await person.answers("or echo [1]", "6")
            await person.answers("vLLM model", "stub")
            await person.answers("address of vLLM [http://127.0.0.1:8000/v1]", "http://127.0.0.1:9/v1")
            await person.answers("API key", "")
            held = asyncio.Event()
            model.script.append(Reply("ok", held=held))
            await person.answers("address of vLLM [http://127.0.0.1:9/v1]", model.url)
            await person.answers("API key", "the-key")
            await model.arrived(1)
            terminal.write("typed-secret")
            held.set()
            await person.answers("platform", "telegram")
            await person.answers("bot token", server.token)
            await person.answers("systemd unit", "")
            await person.sees("Press Ctrl-C in its terminal")
            await person.sees("Waiting for the restart")
            running.write("\x03")
            assert await asyncio.to_thread(running.process.wait, WITHIN_S) == 0
            running.close()
            running = Terminal(words, tmp_path, environment(TERM="xterm"))
            await person.sees("Now write to the bot")
            server.write(ADA, "it is me")
            await person.answers(f"telegram:{ADA}", "y")
            await person.sees("Write to it once more")
            server.write(ADA, "hello")
            await person.sees(f"Answer in telegram:{ADA}: stub: hello")
            await person.sees("Done.")
            with pytest.raises(AssertionError, match="ended before"):
                await person.sees("Unclosed client session")
            assert await person.leaves() == 0
            shown = terminal.seen
        finally:
            running.close()

    assert read(file)["model"] == {
        "name": "hosted_vllm/stub",
        "api_base": model.url,
        "api_key_file": "secrets/model.api_key",
    }
    noises = ("Unclosed", "typed-secret", "the-key", server.token, "api_key_file that", "--role channels")
    assert [noise for noise in noises if noise in shown] == []


@guarantee("operation", "A gateway that `onboard` started ends with it, however `onboard` ends.")
@pytest.mark.parametrize("end", ["killed", "its terminal is closed"])
async def test_however_it_ends_its_gateway_ends_too(tmp_path: Path, onboard: Open, end: str) -> None:
    """The one that it runs for the time being is left behind by no kill, and ends in good order."""
    async with TelegramServer() as server:
        (tmp_path / "config.toml").write_text(telegram(server))
        (tmp_path / "token").write_text(server.token)
        terminal = onboard(
            "--model", "echo", "--platform", "telegram", "--token-file", str(tmp_path / "token")
        )
        person = Person(terminal)
        await person.answers("systemd unit", "")
        await person.sees("Now write to the bot")
        registry = DaemonRegistry(tmp_path / "w")
        (row,) = registry.running()
        helper = os.pidfd_open(row.pid)
        try:
            if end == "killed":
                terminal.process.kill()
            else:
                terminal.hang_up()
            ended, _, _ = await asyncio.to_thread(select.select, [helper], [], [], WITHIN_S)
        finally:
            os.close(helper)

    assert ended
    # What is killed itself leaves its entry behind.
    assert registry.forget_gone() == 0


async def test_answers_by_options_over_a_pipe(tmp_path: Path) -> None:
    """A script asks nothing; only the owner that it names is let in."""
    async with DiscordServer() as server, ModelServer() as model:
        table = f'[channels.discord]\napi_base_url = "{server.api_base_url}"\nsweep_s = 1\n'
        file = written(tmp_path, model, table)
        (tmp_path / "key").write_text("the-key\n")
        (tmp_path / "token").write_text(f"{server.token}\n")
        direct = server.dm("ada")
        owner = str(direct.recipient.id)
        words = f"--yes --model openai/stub --platform discord --owner {owner} --unit {tmp_path}"
        words += f" --key-file {tmp_path}/key --token-file {tmp_path}/token"
        process = await _piped(tmp_path, *words.split())
        try:
            await _reads(process, "Now write to the bot")
            server.write(direct, "it is me", user="ada")
            await _reads(process, "is approved")
            server.write(direct, "hello", user="ada")
            rest = (await asyncio.wait_for(process.communicate(), WITHIN_S))[1].decode()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.communicate()

    assert process.returncode == 0, rest
    assert "stub: hello" in rest
    assert read(file)["channels"]["discord"]["enabled"] is True
    unit = (tmp_path / "chat-gateway.service").read_text()
    assert f"--config {file} --workspace {tmp_path / 'w'} run\n" in unit


async def test_a_dry_run_writes_nothing_and_a_model_that_refuses_ends_a_script(tmp_path: Path) -> None:
    async with ModelServer() as model:
        file = written(tmp_path, model, "")
        (tmp_path / "key").write_text("the-key\n")
        before = file.read_bytes()
        words = f"--yes --dry-run --model openai/stub --platform none --unit {tmp_path}"
        process = await _piped(tmp_path, *words.split(), "--key-file", str(tmp_path / "key"))
        out, said = (part.decode() for part in await asyncio.wait_for(process.communicate(), WITHIN_S))
        model.script.append(Reply(status=401))
        refused = await _piped(tmp_path, "--yes", "--model", "openai/stub", "--platform", "none")
        _, refusal = await asyncio.wait_for(refused.communicate(), WITHIN_S)

    assert process.returncode == 0, said
    assert '+name = "openai/stub"  # for now\n' in out
    assert "ExecStart=" in out
    assert "the-key" not in out + said
    # Of the connections to the model.
    assert "Unclosed" not in said
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "key", "w"]
    assert refused.returncode == 1
    assert b"try:" in refusal


async def _piped(tmp_path: Path, *words: str) -> forked.Awaited:
    return await forked.spawn(
        *command(tmp_path / "w", "--config", str(tmp_path / "config.toml"), "onboard", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )


async def _reads(process: forked.Awaited, text: str) -> None:
    assert process.stderr is not None
    seen = ""
    while text not in seen:
        line = (await asyncio.wait_for(process.stderr.readline(), WITHIN_S)).decode()
        assert line, seen
        seen += line
