"""Discord's REST interface, for receiving and sending: a login, deadlines, errors by what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import discord
import structlog
from discord.http import HTTPClient, Route, handle_message_parameters

import durable
from channels.base import PlatformTime
from channels.discord.messages import Raw
from channels.errors import (
    ChannelDown,
    ChannelError,
    CredentialsRefused,
    SendLater,
    SendNever,
    SendUnknown,
)
from channels.tables import DiscordTable as Table

# The most that Discord shows of a history at once.
PAGE: Final = 100
AT_ONCE: Final = 8
HINT: Final = "reset the token in the developer portal (Bot) and set channels.discord.token"
# So long one request waits for a limit; the client takes no less.
_LONGEST_WAIT_S: Final = 30.0
_CHUNK_BYTES: Final = 2**16
# For a file: 20 MB over a line of 0.7 Mbit/s.
_UPLOAD_S: Final = 240.0
_SECRET_PATH: Final = re.compile(r"((?:webhooks|interactions)/\d+/|\b\d+\+)[\w.\-]{20,}")
T = TypeVar("T")


class RequestRefused(SendNever):
    """Discord answered with a client error; ``code`` is its own, 0 where it gave none."""

    def __init__(self, message: str, *, status: int, code: int) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(slots=True)
class _Flight:
    """How far the newest try of a request came."""

    # Whether it was sent whole: it may have been carried out.
    written: bool = False
    limited_until: float = 0.0
    everywhere: bool = False


_flight: ContextVar[_Flight | None] = ContextVar("discord_flight", default=None)


class Rest:
    """One logged-in HTTP client, made when it is first used; independent of the gateway.

    One request may take ``request_timeout_s`` of its table, its waits for limits included; one with a file
    may take four minutes.
    """

    def __init__(self, table: Table) -> None:
        # The client's addresses are of the whole process.
        Route.BASE = table.api_base_url.rstrip("/")
        if table.cdn_base_url:
            discord.Asset.BASE = table.cdn_base_url.rstrip("/")
        self._token = table.token.get_secret_value()
        self._timeout_s = table.request_timeout_s
        self._http: HTTPClient | None = None
        self._login = asyncio.Lock()
        self._pages = asyncio.Semaphore(AT_ONCE)
        self._files: aiohttp.ClientSession | None = None
        self.time = PlatformTime()
        self._me: Raw = {}
        _hide_secret_paths()

    async def me(self) -> Raw:
        """Return the bot's user object."""
        await self.call(_nothing)
        return self._me

    def now(self) -> datetime:
        """Return the time by Discord's clock; by this machine's before Discord has answered."""
        return self.time.now() or durable.now()

    async def call(
        self,
        ask: Callable[[HTTPClient], Awaitable[T]],
        *,
        by_token: bool = True,
        at_least_s: float = 0.0,
    ) -> T:
        """Do one request of the client.

        Args:
            ask: the request.
            by_token: the bot's token opens the route: a refusal of it concerns the whole adapter.
            at_least_s: how long it may take, however short the limit of requests is.

        Raises:
            ChannelDown, SendLater, SendUnknown: as ``Channel.send`` says.
            Refused: Discord refuses this request.
            CredentialsRefused: Discord rejects the token.
        """
        flight = _Flight()
        mark = _flight.set(flight)
        try:
            # The library waits out rate limits of any length by itself: a caller would never learn why.
            async with asyncio.timeout(max(self._timeout_s, at_least_s)):
                return await ask(await self._client())
        except ChannelError:
            raise
        except Exception as error:
            raise _meaning(error, flight, by_token=by_token) from error
        finally:
            _flight.reset(mark)
            if flight.everywhere and self._http is not None:
                # A wait that was cut short would leave every other request waiting for its end.
                self._http._global_over.set()

    async def ask(self, method: str, path: str, *, by_token: bool = True, **values: Any) -> Any:
        """Do a request that the client has no method for; ``json`` is its body, the rest fills the path."""
        body = {"json": values.pop("json")} if "json" in values else {}
        return await self.call(
            lambda http: http.request(Route(method, path, **values), **body), by_token=by_token
        )

    async def post(
        self,
        channel: int,
        content: str | Path,
        *,
        nonce: str,
        quote: str | None,
        caption: str = "",
        components: Sequence[dict[str, Any]] = (),
    ) -> object:
        """Write a text, or a file with its caption, into a channel; return what Discord answers.

        Who is quoted is pinged, and nobody else.

        ``components`` are the rows of buttons below a text.

        Raises:
            SendNever: the file cannot be read; and whatever ``call`` raises.
        """
        more: dict[str, Any] = {}
        if isinstance(content, Path):
            more["file"] = await asyncio.to_thread(_open, content)
            if caption:
                more["content"] = caption
        else:
            more["content"] = content
        if quote is not None and quote.isdecimal():
            more["message_reference"] = {"message_id": quote, "fail_if_not_exists": False}
        mentions = discord.AllowedMentions(everyone=False, users=False, roles=False, replied_user=True)
        with handle_message_parameters(nonce=nonce, allowed_mentions=mentions, **more) as parameters:
            if components and parameters.payload is not None:
                # The client would build a view of its own, with a life and a task for each message.
                parameters.payload["components"] = list(components)
            return await self.call(
                lambda http: http.send_message(channel, params=parameters),
                at_least_s=_UPLOAD_S if isinstance(content, Path) else 0.0,
            )

    async def history(self, channel: str, after: int) -> list[Raw]:
        """Return the messages of a channel after an id, oldest first, at most ``PAGE``."""
        async with self._pages:
            page = await self.call(lambda http: http.logs_from(int(channel), PAGE, after=after))
        return sorted(_objects(page), key=lambda raw: int(raw["id"]))

    async def guild_channels(self, guild: str) -> list[Raw]:
        """Return the channels of a server with the ids of their last messages."""
        async with self._pages:
            return list(_objects(await self.call(lambda http: http.get_all_guild_channels(int(guild)))))

    async def active_threads(self, guild: str) -> list[Raw]:
        """Return the threads of a server that are not archived."""
        async with self._pages:
            found: Any = await self.call(lambda http: http.get_active_threads(int(guild)))
        return list(_objects(found.get("threads") if isinstance(found, dict) else None))

    async def channel(self, channel: str) -> Raw:
        """Return a channel."""
        async with self._pages:
            return _object(await self.call(lambda http: http.get_channel(int(channel))))

    async def message(self, channel: str, number: str) -> Raw:
        """Return a message."""
        async with self._pages:
            return _object(await self.call(lambda http: http.get_message(int(channel), int(number))))

    async def open_direct(self, person: str) -> Raw:
        """Return the direct channel with a person, without that person noticing."""
        async with self._pages:
            return _object(await self.call(lambda http: http.start_private_message(int(person))))

    async def download(self, url: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an attachment.

        Raises:
            ChannelDown: the download broke off.
            Refused: the file is not there.
        """
        if self._files is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s
            )
            self._files = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        try:
            async with self._files.get(url) as response:
                if response.status >= 500:
                    raise ChannelDown(f"Discord answered a download with {response.status}")
                if response.status != 200:
                    words = f"Discord refuses to send the file ({response.status})"
                    raise RequestRefused(words, status=response.status, code=0)
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ChannelDown(f"the download broke off: {type(error).__name__}") from None

    async def aclose(self) -> None:
        """Close every connection."""
        http, self._http = self._http, None
        files, self._files = self._files, None
        if http is not None:
            await http.close()
        if files is not None:
            await files.close()

    async def _client(self) -> HTTPClient:
        if self._http is not None:
            return self._http
        async with self._login:
            if self._http is None:
                # The login sends a request of its own, which says nothing about the one that was asked for.
                mark = _flight.set(_Flight())
                http = HTTPClient(
                    asyncio.get_running_loop(),
                    max_ratelimit_timeout=_LONGEST_WAIT_S,
                    http_trace=self._trace(),
                )
                try:
                    self._me = _object(await http.static_login(self._token))
                    self._http = http
                finally:
                    _flight.reset(mark)
                    if self._http is None:
                        await http.close()
        return self._http

    def _trace(self) -> aiohttp.TraceConfig:
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(_began)
        trace.on_request_headers_sent.append(_wrote)
        trace.on_request_end.append(_answered)
        trace.on_request_end.append(self._look_at_clock)
        return trace

    async def _look_at_clock(self, _: object, __: object, end: aiohttp.TraceRequestEndParams) -> None:
        self.time.note(end.response.headers.get("Date"))


async def _nothing(_: HTTPClient) -> None:
    return None


async def _began(*_: object) -> None:
    flight = _flight.get()
    if flight is not None:
        flight.written = False


async def _wrote(*_: object) -> None:
    flight = _flight.get()
    if flight is not None:
        flight.written = True


async def _answered(_: object, __: object, end: aiohttp.TraceRequestEndParams) -> None:
    flight = _flight.get()
    if flight is None:
        return
    status, headers = end.response.status, end.response.headers
    # A refusal was not carried out; of an error nobody knows.
    flight.written = not 400 <= status < 500
    flight.everywhere = flight.everywhere or status == 429
    if status == 429:
        flight.limited_until = asyncio.get_running_loop().time() + _retry_after(headers.get("Retry-After"))


def refused_token(status: int = 401) -> CredentialsRefused:
    """Return the error of a token that Discord does not take."""
    return CredentialsRefused(f"Discord rejects the token ({status})", hint=HINT)


def sent_id(sent: Any) -> str:
    """Read the id of the message that Discord says it made.

    Raises:
        SendUnknown: it answered something else.
    """
    try:
        return str(int(sent["id"]))
    except (KeyError, TypeError, ValueError) as error:
        raise SendUnknown("Discord's answer is not the message") from error


def _meaning(error: Exception, flight: _Flight, *, by_token: bool) -> ChannelError:
    """Say what became of a request that failed with ``error``."""
    if isinstance(error, discord.LoginFailure):
        return refused_token()
    if isinstance(error, discord.RateLimited):
        return SendLater("Discord asks to wait", after_s=error.retry_after)
    if isinstance(error, discord.HTTPException) and error.status < 500:
        return _refusal(error, by_token=by_token)
    left_s = flight.limited_until - asyncio.get_running_loop().time()
    if isinstance(error, TimeoutError) and not flight.written and left_s > 0:
        return SendLater("Discord asks to wait", after_s=left_s)
    words = f"no answer from Discord: {type(error).__name__}"
    if isinstance(error, discord.HTTPException):
        words = f"Discord answered {error.status}"
    return SendUnknown(words) if flight.written else ChannelDown(words)


def _refusal(error: discord.HTTPException, *, by_token: bool) -> ChannelError:
    if error.status == 429:
        after_s = _retry_after(error.response.headers.get("Retry-After"))
        return SendLater("Discord asks to wait", after_s=after_s)
    if error.status == 401 and by_token:
        return refused_token()
    words = " ".join(_SECRET_PATH.sub(r"\1…", error.text or "").split())[:200]
    if words.startswith("<"):
        words = "a web page instead of an answer"
    return RequestRefused(f"Discord answered {error.status}: {words}", status=error.status, code=error.code)


def _retry_after(header: str | None) -> float:
    try:
        return max(0.0, float(header or ""))
    except ValueError:
        return 5.0


def _open(path: Path) -> discord.File:
    try:
        return discord.File(path)
    except OSError as error:
        raise SendNever(f"the file {path.name} cannot be read: {error.strerror}") from error


def _object(found: object) -> Raw:
    if not isinstance(found, dict):
        raise ChannelDown("Discord's answer is not a JSON object")
    return found


def _objects(found: object) -> Iterable[Raw]:
    """Yield what is an object with an id; nothing else can be named, fetched or passed by."""
    if not isinstance(found, list):
        raise ChannelDown("Discord's answer is not a JSON list")
    return [each for each in found if isinstance(each, dict) and str(each.get("id")).isdecimal()]


class _HideSecretPaths(logging.Filter):
    """Takes the tokens of interactions out of the addresses that the client logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        with contextlib.suppress(TypeError, ValueError):
            record.msg, record.args = _SECRET_PATH.sub(r"\1…", record.getMessage()), ()
        return True


_hiding: Final = _HideSecretPaths()


def _hide_secret_paths() -> None:
    # Logging adds the same filter only once.
    logging.getLogger("discord.http").addFilter(_hiding)


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
