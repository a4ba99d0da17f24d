"""The connection to the Bot API, and what each of its failures means; nothing here shows the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson
import structlog
from telegram import Bot, InputFile
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    TelegramError,
    TimedOut,
)
from telegram.request import HTTPXRequest
from telegram.warnings import PTBUserWarning

from channels.base import PlatformTime
from channels.errors import (
    ChannelDown,
    ChannelError,
    ChatMoved,
    CredentialsRefused,
    SendLater,
    SendNever,
    SendUnknown,
)
from channels.tables import TelegramTable as Table

log = structlog.get_logger(__name__)

# So many requests go at once: some that hang keep no other chat waiting.
_SENDERS: Final = 64
_UPLOAD_S: Final = 600.0
_CHUNK_BYTES: Final = 2**16
# Telegram makes a short poll that repeats its offset this long.
_SHORTEST_POLL_S: Final = 3
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_TOO_BIG: Final = "the file is over 20 MB, Telegram's limit for bots"
# In the words of one refusal for both: "wrong file_id or the file is temporarily unavailable".
_AWAY: Final = "temporarily unavailable"
_TOKEN_HINT: Final = "copy the token from @BotFather again: channels.telegram.token"  # noqa: S105


class Taken(ChannelDown):
    """Somebody else receives what this bot is sent."""


class WebhookSet(Taken):
    """A webhook receives what this bot is sent."""


class NoAnswer(SendUnknown):
    """Telegram did not answer in time."""


class _ServerFault(NetworkError):
    """The answer was an error of the server, or not JSON: what was asked may have been done."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(f"Telegram's server answered with an error ({code})")
        self.code = code


class _Flooded(TelegramError):
    """Too many requests; nothing was done."""

    __slots__ = ("after_s",)

    def __init__(self, after_s: float) -> None:
        super().__init__(f"Telegram asks to wait for {after_s:g} s")
        self.after_s = after_s


class _Request(HTTPXRequest):
    """Tells apart what python-telegram-bot throws together, and never logs what a server answered."""

    __slots__ = ()

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        code, payload = await super().do_request(*args, **kwargs)
        if code < 300:
            return code, payload
        if code >= 500:
            raise _ServerFault(code)
        answer = _json(payload)
        parameters = answer.get("parameters") if isinstance(answer, dict) else None
        if isinstance(parameters, dict) and isinstance(parameters.get("retry_after"), int | float):
            raise _Flooded(float(parameters["retry_after"]))
        if code == 429:
            raise _Flooded(5.0)
        if code == 413:
            raise BadRequest("the file is too large for Telegram")
        if not isinstance(answer, dict):
            raise _ServerFault(code)
        return code, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        answer = _json(payload)
        if not isinstance(answer, dict):
            raise _ServerFault(200)
        return answer


def _request(connections: int, timeout_s: float, trust: dict[str, Any]) -> _Request:
    return _Request(
        connection_pool_size=connections,
        read_timeout=timeout_s,
        write_timeout=timeout_s,
        media_write_timeout=timeout_s,
        connect_timeout=timeout_s,
        pool_timeout=timeout_s,
        httpx_kwargs=trust,
    )


def _json(payload: bytes) -> object:
    """Read JSON; None where it is none. Half a surrogate pair, which no queue can hold, becomes ``?``."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        pass
    try:
        lenient = json.loads(payload.decode(errors="replace"))
        return orjson.loads(json.dumps(lenient, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


class _Bot(Bot):
    """Asks for methods by their names without a word that there are functions of these names.

    A filter of warnings is the whole process's, and lost where a thread puts back those that it kept.
    """

    __slots__ = ()

    @classmethod
    def _warn(
        cls, message: str | PTBUserWarning, category: type[Warning] = PTBUserWarning, stacklevel: int = 0
    ) -> None:
        if not str(message).startswith("Please use 'Bot."):
            super()._warn(message, category, stacklevel + 1)


class Wire:
    """One bot at one address: polls apart from everything else, so that a poll that hangs starves no send.

    Args:
        grace_s: how late the answer of a poll may be.
    """

    def __init__(self, table: Table, *, grace_s: float) -> None:
        self._timeout_s = table.request_timeout_s
        self._poll_s = table.poll_timeout_s
        self._grace_s = min(grace_s, table.request_timeout_s)
        self.time = PlatformTime()
        trust: dict[str, Any] = {
            "verify": httpx.create_ssl_context(),
            "event_hooks": {"response": [self._look_at_clock]},
        }
        self._polling = _request(2, table.request_timeout_s, trust)
        self._sending = _request(_SENDERS, table.request_timeout_s, trust)
        self._files = httpx.AsyncClient(timeout=table.request_timeout_s, verify=trust["verify"])
        self._bot = _Bot(
            table.token.get_secret_value(),
            base_url=table.base_url,
            base_file_url=table.base_file_url,
            request=self._sending,
            get_updates_request=self._polling,
        )

    async def _look_at_clock(self, response: httpx.Response) -> None:
        self.time.note(response.headers.get("Date"))

    async def call(self, method: str, **fields: Any) -> Any:
        """Ask for a method of the Bot API and return its raw result.

        Raises:
            ChannelError: as ``Channel.send`` says.
        """
        return await self._ask(method, 2 * self._timeout_s, fields)

    async def upload(self, kind: str, path: Path, **fields: Any) -> Any:
        """Send a file as a photo, video, document …; return the raw message.

        Raises:
            ChannelError: as ``Channel.send`` says.
        """
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except OSError as error:
            raise SendNever(f"the file cannot be read: {error.strerror}") from error
        with file:
            given = InputFile(file, filename=path.name, read_file_handle=False)
            return await self._ask(
                f"send{kind.capitalize()}", _UPLOAD_S, {**fields, kind: given}, read_s=4 * self._timeout_s
            )

    async def poll(self, offset: int | None, allowed: tuple[str, ...]) -> list[Any]:
        """Wait for updates from ``offset`` on, as raw objects.

        Raises:
            ChannelError: ``NoAnswer`` where none came although the poll's time was over, ``Taken``.
        """
        within_s = max(self._poll_s, _SHORTEST_POLL_S) + self._grace_s
        asked = {"offset": offset, "limit": 100, "timeout": self._poll_s, "allowed_updates": list(allowed)}
        found = await self._ask("getUpdates", within_s, asked, read_s=within_s)
        if not isinstance(found, list):
            raise as_channel_error(_ServerFault(200))
        return found

    async def forget(self, offset: int, within_s: float) -> None:
        """Let Telegram forget the updates before ``offset``, without waiting for new ones."""
        await self._ask("getUpdates", within_s, {"offset": offset, "limit": 1, "timeout": 0})

    async def _ask(
        self, method: str, within_s: float, fields: dict[str, Any], *, read_s: float | None = None
    ) -> Any:
        read_timeout = self._timeout_s if read_s is None else read_s
        try:
            async with asyncio.timeout(within_s):
                return await self._bot.do_api_request(method, api_kwargs=fields, read_timeout=read_timeout)
        except TimeoutError as error:
            # Whether Telegram acted on it is unknown: who sends counts it as a try in doubt.
            raise NoAnswer("no answer from Telegram in time") from error
        except (KeyError, TypeError, AttributeError) as error:
            # The answer is JSON, but not of the Bot API's form.
            raise as_channel_error(_ServerFault(200)) from error
        except TelegramError as error:
            raise as_channel_error(error) from error

    async def rebuild(self) -> None:
        """Replace the connections of the polls."""
        await self._polling.shutdown()
        await self._polling.initialize()
        log.warning("poll.reconnected")

    async def download(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that somebody sent.

        Raises:
            ChannelDown: it may be given later; SendLater likewise.
            ChannelError: Telegram does not give it.
        """
        try:
            found = await self.call("getFile", file_id=file_id)
            path = quote(str(found["file_path"]))
        except SendUnknown as error:
            # A question changes nothing at Telegram: it may be asked again.
            raise ChannelDown(str(error)) from error
        except SendNever as error:
            if _AWAY in str(error):
                raise ChannelDown(str(error)) from error
            raise ChannelError(_TOO_BIG if "too big" in str(error) else str(error)) from error
        except (KeyError, TypeError) as error:
            raise ChannelError("Telegram does not say where the file is") from error
        try:
            async with self._files.stream("GET", f"{self._bot.base_file_url}/{path}") as answer:
                if answer.status_code != 200:
                    refused = ChannelDown if answer.status_code >= 500 else ChannelError
                    raise refused(f"Telegram refuses to send the file ({answer.status_code})")
                async for chunk in answer.aiter_bytes(_CHUNK_BYTES):
                    yield chunk
        except httpx.HTTPError as error:
            # Its words may hold the address, and the address holds the token.
            raise ChannelDown(f"the download of the file was interrupted ({type(error).__name__})") from None

    async def aclose(self) -> None:
        """Close every connection."""
        await self._polling.shutdown()
        await self._sending.shutdown()
        await self._files.aclose()


def as_channel_error(error: TelegramError) -> ChannelError:
    """Say what a failure means for what was asked: not done, refused for good, or nobody knows."""
    cause = error.__cause__
    match error:
        case ChatMigrated():
            return ChatMoved("the group became a supergroup", to=str(error.new_chat_id))
        case _Flooded():
            return SendLater(error.message, after_s=error.after_s)
        case InvalidToken():
            return CredentialsRefused("Telegram rejects the token", hint=_TOKEN_HINT)
        case Forbidden() | BadRequest():
            return SendNever(error.message)
        case Conflict() if "webhook" in error.message.casefold():
            return WebhookSet("this bot has a webhook: Telegram sends its messages there")
        case Conflict():
            return Taken("another program is polling with this token; only one can receive")
        case _ServerFault():
            return SendUnknown(error.message)
    if isinstance(cause, _UNSENT):
        return ChannelDown(f"Telegram cannot be reached ({type(cause).__name__})")
    if isinstance(error, TimedOut):
        return NoAnswer("no answer from Telegram in time")
    return SendUnknown(f"the connection to Telegram broke ({type(cause or error).__name__})")
