"""One call to whoever a key or token is for, before it is written down."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Literal

from channels.errors import ChannelError
from channels.tables import DiscordTable, Platform, TelegramTable
from gateway.app.wiring_model import opened_model, try_model
from gateway.config.checking import unknown_provider
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.errors import SessionError
from session.models.model import Model

MODEL_S = 60.0
PLATFORM_S = 30.0
_GRACE_S = 5.0


def ask_model(settings: Settings) -> str:
    """Ask the model for a word; return what it said, with tokens and price.

    Raises:
        GatewayError: it does not answer, with the cure.
    """
    return asyncio.run(_ask_model(settings))


async def _ask_model(settings: Settings) -> str:
    async with opened_model(settings) as model:
        return await _answer_of(model, settings)


async def _answer_of(model: Model, settings: Settings) -> str:
    try:
        async with asyncio.timeout(MODEL_S):
            answer = await try_model(model)
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
    return asyncio.run(_ask_platform(name, table))


async def _ask_platform(name: str, table: Platform) -> str:
    try:
        async with asyncio.timeout(PLATFORM_S):
            if name == "telegram":
                assert isinstance(table, TelegramTable)
                return await _telegram(table)
            assert isinstance(table, DiscordTable)
            return await _discord(table)
    except ChannelError as error:
        raise GatewayError(str(error), hint=error.hint or f"docs/{name}.md") from error
    except TimeoutError:
        raise GatewayError(f"no answer from {name} in {PLATFORM_S:g} s", hint="try again") from None


def other_port(host: str, port: int) -> int:
    """Return a port that can be had in place of one that another program has; 0 where that is free itself."""
    if port == 0 or _free(host, port):
        return 0
    return next((other for other in range(port + 1, min(port + 100, 65536)) if _free(host, other)), 0)


def _free(host: str, port: int) -> bool:
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
