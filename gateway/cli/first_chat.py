"""The checks and the first minutes of ``onboard``: keys tried, a gateway that runs, the first answer."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

import orjson

import durable
from channels.errors import ChannelError
from channels.pairing import AccessRequest, Pairing
from channels.tables import DiscordTable, Platform, TelegramTable
from gateway.app.daemons import DaemonRegistry, Running
from gateway.app.wiring_model import opened_model, try_model
from gateway.cli import attach, output
from gateway.cli.onboard import Questions
from gateway.config.checking import unknown_provider
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.outbound.standing import standing
from session.errors import SessionError
from session.models.model import Answer
from session.store.store import Store
from session.transcript.key import SessionKey

MODEL_S = 60.0
PLATFORM_S = 30.0
_GRACE_S = 5.0


def ask_model(settings: Settings) -> str:
    """Ask the model for a word; return what it said, with tokens and price.

    Raises:
        GatewayError: it does not answer, with the cure.
    """

    async def asked() -> Answer:
        async with opened_model(settings) as model, asyncio.timeout(MODEL_S):
            return await try_model(model)

    try:
        answer = asyncio.run(asked())
    except SessionError as error:
        raise GatewayError(str(error), hint=error.hint or "correct the name or the key") from error
    except TimeoutError:
        raise GatewayError(f"no answer in {MODEL_S:g} s", hint="check the address of the model") from None
    said = f"{settings.model.name} answers: {' '.join(answer.text.split())[:60]!r}"
    usage = answer.usage
    if usage is None:
        return said
    price = f"${usage.cost_usd:.6f}" if usage.price is not None else "price unknown"
    return f"{said} ({usage.prompt} + {usage.completion} tokens, {price})"


def check_provider(name: str) -> None:
    """Raise GatewayError where LiteLLM knows no provider for a model of this name: no key would help."""
    if words := unknown_provider(name):
        raise GatewayError(words, hint="docs/models.md has ten examples")


def at_fault(error: GatewayError) -> Literal["key", "address", "model"]:
    """Say which answer of the person made ``ask_model`` fail."""
    cause = getattr(error.__cause__, "cause", "")
    if cause == "credentials":
        return "key"
    return "address" if cause == "unreachable" else "model"


def ask_platform(name: str, table: Platform) -> str:
    """Ask a platform whose token this is; return the bot's name there.

    Raises:
        GatewayError: it refuses the token, or cannot be reached.
    """

    async def asked() -> str:
        async with asyncio.timeout(PLATFORM_S):
            if isinstance(table, TelegramTable):
                return await _telegram(table)
            assert isinstance(table, DiscordTable)
            return await _discord(table)

    try:
        return asyncio.run(asked())
    except ChannelError as error:
        raise GatewayError(str(error), hint=error.hint or f"docs/{name}.md") from error
    except TimeoutError:
        raise GatewayError(f"no answer from {name} in {PLATFORM_S:g} s", hint="try again") from None


def other_port(host: str, port: int) -> int:
    """Return a port that can be had in place of one that another program has; 0 where that is free itself."""
    if port == 0 or _is_free(host, port):
        return 0
    return next((other for other in range(port + 1, min(port + 100, 65536)) if _is_free(host, other)), 0)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((host, port))
        except OSError as error:
            # Whatever else is wrong with the address, another port does not mend it.
            return error.errno != errno.EADDRINUSE
    return True


async def _telegram(table: TelegramTable) -> str:
    # Only who asks this platform waits for the import of its client.
    from channels.telegram.client import Wire

    wire = Wire(table, grace_s=_GRACE_S)
    try:
        return f"@{(await wire.call('getMe'))['username']}"
    finally:
        await wire.aclose()


async def _discord(table: DiscordTable) -> str:
    # As above.
    from channels.discord.rest import Rest

    rest = Rest(table)
    try:
        return str((await rest.me())["username"])
    finally:
        await rest.aclose()


_LOOK_S = 0.3
_PATIENT_S = 20.0
_UNIT = re.compile(r"/(chat-gateway(?:@\w+)?\.service)$", re.MULTILINE)


def program() -> str:
    """Return how this program is called here: by its name where the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "chat-gateway" or shutil.which("chat-gateway"):
        return "chat-gateway"
    return shlex.quote(os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called))


def restart_needed(settings: Settings, config: Path) -> bool:
    """Say whether a daemon runs that started before the configuration was changed."""
    changed = config.stat().st_mtime if config.exists() else 0.0
    return any(datetime.fromisoformat(one.started_at).timestamp() < changed for one in _running(settings))


def restarted(settings: Settings) -> bool:
    """Restart the units that the daemons run as, where this user may; False: a person has to."""
    commands = {_command(one) for one in _running(settings)}
    words = [shlex.split(command) for command in commands if command is not None]
    if len(words) < len(commands) or any(each[0] == "sudo" for each in words):
        return False
    for each in words:
        output.words(f"Restarting the gateway: {shlex.join(each)}")
        if subprocess.run(each, check=False).returncode != 0:  # noqa: S603 - systemctl and the name of a unit
            return False
    return bool(words)


def restart_cure(settings: Settings) -> str:
    """Say what restarts the daemons of the workspace."""
    running = _running(settings)
    command = _command(running[0]) if running else None
    if command is not None:
        return f"Run in another terminal: {command}"
    pid = running[0].pid if running else 0
    return f"Press Ctrl-C in its terminal (process {pid}), then start it again: {program()} run"


def wait_for_restart(settings: Settings) -> None:
    """Return once other processes than now run in the workspace; remind the person of the start."""
    before = {one.pid for one in _running(settings)}
    gone_at = 0.0
    while not {one.pid for one in _running(settings)} - before:
        if not gone_at and not _running(settings):
            gone_at = durable.monotonic()
        if gone_at and durable.monotonic() - gone_at > _PATIENT_S:
            output.words(f"The gateway has stopped. Start it again: {program()} run")
            gone_at = float("inf")
        durable.pause(_LOOK_S)


def _running(settings: Settings) -> list[Running]:
    return [one for one in DaemonRegistry(settings.workspace).running() if one.role != "worker"]


def _command(one: Running) -> str | None:
    """Return what restarts the unit that a daemon runs as; None: it runs as none."""
    groups = _read(f"/proc/{one.pid}/cgroup")
    found = _UNIT.search(groups)
    if found is None:
        return None
    if f"/user@{os.getuid()}.service/" in groups:
        return f"systemctl --user restart {found[1]}"
    return f"{'' if os.geteuid() == 0 else 'sudo '}systemctl restart {found[1]}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


_LOOK_S = 0.3
_END_S = 45.0
_SENT_S = 30.0
_UP_S = 15.0


@contextmanager
def gateway(config: Path, settings: Settings) -> Iterator[None]:
    """Run a gateway of this workspace while the context is open; one that runs already is used, and stays.

    Raises:
        GatewayError: it did not start; its own words say why.
    """
    if DaemonRegistry(settings.workspace).running():
        yield
        return
    # A terminal that is closed must not leave the gateway behind.
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    words = [sys.executable, "-m", "gateway", "--config", str(config), "--workspace", str(settings.workspace)]
    process = subprocess.Popen(  # noqa: S603 - this very program
        # The other end of its stdin is this process's alone: a kill closes it, too.
        [*words, "run", "--stop-on-eof"],
        stdin=subprocess.PIPE,
        # Nobody looks at its page, and the usual port may be that of the machine's own service.
        env={**os.environ, "CHAT_GATEWAY_HTTP__PORT": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Ctrl-C ends the questions; then this process ends the gateway, in good order.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    reading: threading.Thread | None = None
    try:
        said: list[str] = []
        for line in process.stderr:
            if line.startswith("ready"):
                break
            said.append(line.rstrip())
        else:
            raise GatewayError(
                f"the gateway did not start: {' '.join(said[-3:])}", hint="chat-gateway doctor"
            )
        # A gateway whose log nobody reads stands still once the pipe is full.
        reading = threading.Thread(target=process.stderr.read, daemon=True)
        reading.start()
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if reading is not None:
            reading.join()
        process.stdin.close()
        process.stderr.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def until_up(settings: Settings, channel: str) -> None:
    """Wait until the channel hears what is written to it; say once why it does not yet."""
    deadline = durable.monotonic() + _UP_S
    while not (found := standing(settings.state, channel))["up"]:
        if durable.monotonic() > deadline:
            output.words(f"{channel} is not connected yet: {found['error']}; waiting …")
            deadline = float("inf")
        durable.pause(_LOOK_S)


def paired(settings: Settings, channel: str) -> str:
    """Return who was let in on a channel by a code; nothing where nobody was."""
    rows = [row for row in Pairing(settings.state).rows() if row["channel"] == channel]
    return next((str(row["who"]) for row in rows if row["state"] == "approved"), "")


def pair_owner(settings: Settings, channel: str, questions: Questions, owner: str) -> AccessRequest:
    """Wait for the owner's first message and let them in.

    ``owner`` is the numeric id that alone is let in, unasked; where it is empty the person decides.
    """
    pairing = Pairing(settings.state)
    refused: set[str] = set()
    while True:
        for row in pairing.rows():
            code, who = row["code"], str(row["who"])
            if row["channel"] != channel or not code or who in refused:
                continue
            shown = f"{row['name']} ({who})" if row["name"] else who
            if owner:
                agreed = who == f"{channel}:{owner}"
            else:
                agreed = questions.agreed(f"{shown} wrote. Is that you? Allow access?")
            if agreed:
                entry = pairing.approve(code)
                output.words(f"{shown} is approved")
                return entry
            refused.add(who)
            output.words(f"{shown} was not approved; waiting for somebody else to write")
        durable.pause(_LOOK_S)


def first_answer(settings: Settings, chat: str) -> tuple[str, str]:
    """Wait until a chat has an answer and its channel took it; return key and text.

    ``chat`` is its key; one that ends with a colon means any chat of that channel.
    """
    while (found := asyncio.run(_answered(settings, chat))) is None:
        durable.pause(_LOOK_S)
    asyncio.run(_sent(settings))
    return found


async def _answered(settings: Settings, chat: str) -> tuple[str, str] | None:
    async with aclosing(Store(settings.workspace, zone=settings.zone)) as store:
        for row in await store.rows():
            if not row.active or not (row.key == chat or (chat.endswith(":") and row.key.startswith(chat))):
                continue
            view = await store.look(SessionKey(row.key))
            for line in reversed(view.transcript.messages if view is not None else ()):
                message = orjson.loads(line)
                if message.get("role") == "assistant" and message.get("final"):
                    return row.key, str(message.get("content") or "")
    return None


async def _sent(settings: Settings) -> None:
    """Wait until no reply waits for its platform any more, half a minute at most."""
    deadline = durable.monotonic() + _SENT_S
    async with attach.daemon(settings) as client:
        while client is not None and durable.monotonic() < deadline:
            queues = (await client.status())["queues"] or {}
            if not any(depth["count"] for box, depth in queues.items() if box.startswith("outbound")):
                return
            await asyncio.sleep(_LOOK_S)


def secret_file(config: Path, name: str) -> Path:
    """Name the file of a secret: beside the configuration, in a folder for its owner alone."""
    return Path(os.path.realpath(config)).parent / "secrets" / name
