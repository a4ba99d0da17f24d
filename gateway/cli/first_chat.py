"""The first minutes of a bot: a gateway that runs for them, its owner's message, and the first answer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import orjson

import durable
from channels.pairing import AccessRequest, Pairing
from gateway.app.daemons import DaemonRegistry
from gateway.cli import attach, output
from gateway.cli.questions import Questions
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.outbound.standing import standing
from session.store.store import Store
from session.transcript.key import SessionKey

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
                agreed = questions.agreed(f"{shown} wrote. Is that you? Allow access?", default=False)
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
