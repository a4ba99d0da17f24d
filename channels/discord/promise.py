"""The message "is thinking…" that stands for the answer to an interaction: it is filled in or taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from channels.discord.messages import Raw
from channels.discord.rest import RequestRefused, Rest, sent_id
from channels.errors import ChannelError, SendUnknown

_PATH: Final = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
_LOADING: Final = 1 << 7
_EXPIRED: Final = frozenset({401, 403, 404})
log = structlog.get_logger("discord")


async def fill(rest: Rest, meta: Mapping[str, Any], text: str) -> str:
    """Put an answer in its place; return the id of the message, "" where that is over.

    What was promised is one message. The chunks after the first one go to the channel, where a nonce makes a
    repeat harmless.

    Raises:
        ChannelError: as ``Channel.send``.
    """
    where = _place_of(meta)
    try:
        promised: Raw = await rest.ask("GET", _PATH, by_token=False, **where)
        # A try before this one may have filled it in, and its answer was lost. Discord trims texts.
        if not _is_open(promised):
            same = str(promised.get("content") or "").strip() == text.strip()
            return str(promised["id"]) if same else ""
        body = {"content": text, "allowed_mentions": {"parse": []}}
        return sent_id(await rest.ask("PATCH", _PATH, by_token=False, json=body, **where))
    except RequestRefused as error:
        # Its token lives for fifteen minutes: a later answer goes to the channel itself.
        if error.status in _EXPIRED:
            return ""
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SendUnknown("Discord answered an interaction with something unknown") from error


async def withdraw(rest: Rest, meta: Mapping[str, Any]) -> None:
    """Take it away where no answer will come there; it would show for fifteen minutes. What is filled stays.

    Nothing depends on it: a refusal is a line in the log.
    """
    where = _place_of(meta)
    try:
        if _is_open(await rest.ask("GET", _PATH, by_token=False, **where)):
            await rest.ask("DELETE", _PATH, by_token=False, **where)
    except (ChannelError, AttributeError, TypeError, ValueError) as error:
        log.info("interaction.unwithdrawn", error=str(error))


def _place_of(meta: Mapping[str, Any]) -> dict[str, str]:
    return {"webhook_id": str(meta["application"]), "webhook_token": str(meta["interaction"])}


def _is_open(promised: Raw) -> bool:
    return bool(int(promised.get("flags") or 0) & _LOADING)
