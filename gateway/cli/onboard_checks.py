"""One call to whoever a key or token is for, before it is written down."""

from __future__ import annotations

import asyncio
import errno
import socket

from channels.errors import ChannelError
from channels.tables import DiscordTable, Platform, TelegramTable
from gateway.app.model import build_model, try_model
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.errors import SessionError
from session.models.model import Warms

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
    model = build_model(settings)
    if isinstance(model, Warms):
        await model.warm()
    try:
        async with asyncio.timeout(MODEL_S):
            answer = await try_model(model)
    except SessionError as error:
        raise GatewayError(str(error), hint=error.hint or "correct the name or the key") from error
    except TimeoutError:
        raise GatewayError(f"no answer in {MODEL_S:g} s", hint="look at the address of the model") from None
    said = f"{settings.model.name} answers: {' '.join(answer.text.split())[:60]!r}"
    usage = answer.usage
    if usage is None:
        return said
    price = f"${usage.cost_usd:.6f}" if usage.cost_usd else "price unknown"
    return f"{said} ({usage.prompt} + {usage.completion} tokens, {price})"


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
        raise GatewayError(f"{name} does not answer in {PLATFORM_S:g} s", hint="try again") from None


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
    from channels.telegram.wire import Wire

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
