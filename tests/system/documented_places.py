"""The places in which the pages are typed: what lies there before, and which processes run beside."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.cli.test_cli_interchange import pi_file
from tests.gateway.cli_place import session_file
from tests.session.mcp import mcp_place
from tests.support.broker import BIN, Broker
from tests.support.harness import ROOT, Daemon, environment
from tests.support.model_server import ModelServer
from tests.support.ports import KeptPort
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram
from tests.system.typist import Typist, write_program

TOKEN = "correct-horse-battery-staple"
TELEGRAM_TOKEN = "7012345:AAtest-token_of_the_local_server_000"
ULID, JOB = "01M82KPX05XQGTJVXRK6MR9B2D", "701386d9"
_GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false")
# A backup as a page names one; there it has the time at which the page was typed.
_TAKEN = "chat-gateway-20270101T033000Z.tar"
_LATER = 4_000_000_000
# What a page has, and what it is on any machine: there is no such user here, and the Python of the tests may
# lie in somebody's home.
_USER = {
    " -o chat-gateway": f" -o {getpass.getuser()}",
    "sudo chat-gateway systemd install": "sudo chat-gateway systemd install --to /etc --program /usr/bin/env",
}


@asynccontextmanager
async def checkout(folder: Path) -> AsyncIterator[Typist]:
    """A clone whose packages are installed already, and a home without anything; nothing runs."""
    origin = _repository(folder)
    env = {"CHAT_GATEWAY_HTTP__PORT": "0", "TELEGRAM_TOKEN": TELEGRAM_TOKEN}
    async with Typist(
        folder / "machine", env=env, names=_USER | {"<where this comes from>": str(origin)}
    ) as typist:
        for name in ("var/lib/chat-gateway", "etc/credstore", "etc/sysusers.d", "usr/local/bin", "opt"):
            (typist.folder / name).mkdir(parents=True)
        if folder.name == "systemd.md":
            (typist.home / ".config" / "chat-gateway").mkdir(parents=True)
            (typist.home / ".config" / "chat-gateway" / "config.toml").touch()
        await typist.type("git clone --quiet '<where this comes from>' /opt/chat-gateway.first")
        if folder.name == "install.md":
            await typist.type("cp -a /opt/chat-gateway.first /opt/chat-gateway")
        elif folder.name != "systemd.md":
            await typist.type("cd /opt/chat-gateway.first")
        else:
            # A person whom `onboard` led here.
            await typist.type("mkdir -p ~/.config/chat-gateway && touch ~/.config/chat-gateway/config.toml")
        yield typist


def _repository(folder: Path) -> Path:
    """Make what is cloned: the files that ``make`` needs, and an environment in which all is installed."""
    origin, venv = folder / "origin", folder / "venv"
    (venv / "bin").mkdir(parents=True)
    write_program(venv / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    write_program(venv / "bin" / "pip", "#!/bin/sh\nexit 1\n")
    (venv / "bin" / "chat-gateway").symlink_to(folder / "machine" / "bin" / "chat-gateway")
    for name in (".runtime", ".dev"):
        (venv / name).touch()
        os.utime(venv / name, (_LATER, _LATER))
    (origin / "deploy").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, origin)
    for name in ("locks", "install-packages.sh"):
        source = ROOT / "deploy" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, origin / "deploy" / name)
    for name in ("gateway", "channels", "session", "durable"):
        (origin / name).mkdir()
        (origin / name / "__init__.py").touch()
    (origin / ".venv").symlink_to(venv)
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message=all")):
        subprocess.run([*_GIT, *words], cwd=origin, check=True)
    return origin


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Typist]:
    """A daemon with the built-in model runs; what the pages take over and restore lies there."""
    workspace = folder / "workspace"
    config = {"http.token": TOKEN}
    async with Daemon(workspace, config=config) as daemon:
        await _until_up(daemon)
        names = _USER | {"http://127.0.0.1:8006": daemon.url, _TAKEN: "chat-gateway-*.tar"}
        # A time to come on every day on which this runs.
        names["2027-01-01T09:00"] = f"{datetime.now(UTC).year + 2}-01-01T09:00"
        async with Typist(folder / "machine", env=_as(workspace, daemon, config), names=names) as typist:
            _fill(typist)
            await _serve(typist, workspace)
            yield typist


def _as(workspace: Path, daemon: Daemon, config: Mapping[str, object]) -> dict[str, str]:
    named = {k: v for k, v in environment(config).items() if k.startswith("CHAT_GATEWAY_")}
    return named | {"CHAT_GATEWAY_WORKSPACE": str(workspace), "TOKEN": TOKEN}


def _fill(typist: Typist) -> None:
    """Lay what the pages speak of where they say that it is."""
    home = typist.home
    (home / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 a picture")
    _change(home)
    pi_file(home / ".pi" / "agent" / "sessions" / "--home-ada-work--" / "one.jsonl")
    pi_file(home / ".openclaw" / "agents" / "main" / "sessions" / "two.jsonl")
    session_file(home / ".nanobot" / "workspace" / "sessions" / "telegram_1.jsonl", "telegram:1", "hello")


async def _serve(typist: Typist, workspace: Path) -> None:
    """Let the daemon be the machine's service, with a checkout that may be renewed."""
    for name in ("var/lib", "var/backups", "etc/chat-gateway"):
        (typist.folder / name).mkdir(parents=True)
    (typist.folder / "var" / "lib" / "chat-gateway").symlink_to(workspace)
    (typist.folder / "etc" / "chat-gateway" / "config.toml").touch()
    origin = _repository(typist.folder / "source")
    assert (await typist.type(f"git clone --quiet {origin} /opt/chat-gateway")).code == 0


def _change(folder: Path) -> None:
    """Make a folder a repository in which something was changed since."""
    file = folder / "notes.txt"
    file.write_text("one\n")
    for words in (("init", "--quiet"), ("add", "notes.txt"), ("commit", "--quiet", "--message=one")):
        subprocess.run([*_GIT, *words], cwd=folder, check=True)
    file.write_text("two\n")


async def _until_up(daemon: Daemon) -> None:
    """Wait for the parts that do not turn the daemon's readiness: they may come up behind its ``ready``."""

    async def up() -> bool:
        async with httpx.AsyncClient(timeout=30) as client:
            parts = (await client.get(f"{daemon.url}/readyz")).json()["parts"]
        return all(part["up"] for part in parts.values())

    await until(up, 120)


@asynccontextmanager
async def with_a_bot(folder: Path) -> AsyncIterator[Typist]:
    """A daemon with a bot, a model that calls a tool, a server of tools, and an agent ``coder``."""
    workspace = folder / "workspace"
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        server = await stack.enter_async_context(TelegramServer(token=TELEGRAM_TOKEN))
        server.updates.next_id = 88120034
        # One that the gateway starts would have to be confined, which root's is not.
        port = stack.enter_context(KeptPort())
        tools = mcp_place.at(folder, port)
        stack.enter_context(mcp_place.served(folder / "mcp.log", port))
        config = with_telegram(server, stream=False) | {
            # With a price.
            "model.name": "openai/gpt-4o-mini",
            "model.api_base": model.url,
            "agents": {"coder": {}},
            "mcp": {"time": {"url": tools.url, "headers_file": str(tools.headers_file)}},
        }
        daemon = await stack.enter_async_context(Daemon(workspace, config=config))
        await _until_up(daemon)
        server.write(ADA, 'What is there? [[tool:ls {"path": "."}]]')
        await server.said(ADA, lambda sent: "What is there?" in sent.text)
        async with httpx.AsyncClient(timeout=120) as client:
            body = {"chat_id": "ada", "text": "hello", "id": "m1"}
            await client.post(f"{daemon.url}/v1/messages?wait=60", json=body)
        env = _as(workspace, daemon, config)
        yield await stack.enter_async_context(Typist(folder / "machine", env=env, litellm=True))


@asynccontextmanager
async def onboarding(folder: Path) -> AsyncIterator[Typist]:
    """Nothing is there but a model, a platform, and the files with the key and the token."""
    async with ModelServer() as model, TelegramServer(token=TELEGRAM_TOKEN) as server:
        names = {"--yes": f"--yes --api-base {model.url}"}
        env = {
            "CHAT_GATEWAY_HTTP__PORT": "0",
            "CHAT_GATEWAY_CHANNELS__TELEGRAM__BASE_URL": server.base_url,
            "CHAT_GATEWAY_CHANNELS__TELEGRAM__BASE_FILE_URL": server.base_file_url,
        }
        async with Typist(folder / "machine", env=env, names=names, litellm=True) as typist:
            (typist.home / "key").write_text("sk-test\n")
            (typist.home / "token").write_text(TELEGRAM_TOKEN + "\n")
            yield typist


@asynccontextmanager
async def beside_a_broker(folder: Path, broker: Broker) -> AsyncIterator[Typist]:
    """A RabbitMQ runs whose users are nobody else's; the shell stands in a checkout."""
    ctl = f"{BIN}/rabbitmqctl --quiet"
    theirs = {name: value for name, value in broker.environment().items() if name != "PATH"}
    async with Typist(folder / "machine", env=theirs | {"RABBITMQCTL": ctl}) as typist:
        (typist.folder / "opt" / "chat-gateway").mkdir(parents=True)
        (typist.folder / "opt" / "chat-gateway" / "deploy").symlink_to(ROOT / "deploy")
        # The one on PATH becomes another user first.
        write_program(typist.folder / "bin" / "rabbitmqctl", f'#!/bin/sh\nexec {BIN}/rabbitmqctl "$@"\n')
        yield typist


def learn(typist: Typist, command: str, told: Any) -> None:
    """Note the ids that the gateway chose, where the page goes on with them."""
    if "sessions?limit=1" in command:
        typist.choose(ULID, told["sessions"][0]["id"])
    elif '"every"' in command:
        typist.choose(JOB, told["id"])
