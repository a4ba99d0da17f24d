"""The OpenAI clients through which LiteLLM asks servers of OpenAI's kind: they send a request as it is.

Left alone the client copies each message and tool of a request by the types of all that one could be, key by
key: 0.1 ms of the loop's thread a message, at each request. LiteLLM takes a client of one's own; ours hands
both on beside what is copied. What LiteLLM made of them for the provider stays.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# What of a request grows with the conversation.
_LONG = ("messages", "tools")
_raws: ContextVar[list[Any] | None] = ContextVar("raw answers", default=None)


@contextmanager
def raw_answers() -> Iterator[list[Any]]:
    """Yield a list to which the whole answers to requests made within are added, as the server gave them.

    One that is no answer, or an error with status 200, is none of them.
    """
    raws: list[Any] = []
    token = _raws.set(raws)
    try:
        yield raws
    finally:
        _raws.reset(token)


async def whole_instead(stream: Any) -> Any:
    """Return the whole answer that a server gave in place of a stream; None: it streams.

    Raises:
        APIError: it is an error.
        ValueError: it is nothing that can be read.
    """
    from openai import APIError
    from openai.types.chat import ChatCompletion

    response = stream.response
    if "application/json" not in response.headers.get("content-type", ""):
        return None
    said = json.loads(await response.aread())
    if not isinstance(said, dict) or said.get("error"):
        error = said.get("error") if isinstance(said, dict) else said
        words = error.get("message") if isinstance(error, dict) else error
        raise APIError(str(words), response.request, body=error)
    return ChatCompletion.construct(**said)


class OpenAIClients:
    """One client for each address and key, made when it is first asked for."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], AsyncOpenAI] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self, library: Any, *, api_base: str, api_key: str) -> AsyncOpenAI | None:
        """Return the client for an address; None where there is no key, which is for LiteLLM to say.

        Args:
            library: LiteLLM; its connections are used, with what its environment says of proxies and TLS.
            api_base: empty means the environment's, else OpenAI's own.
            api_key: empty means the environment's.
        """
        environ = os.environ
        base = api_base or environ.get("OPENAI_BASE_URL") or environ.get("OPENAI_API_BASE") or ""
        key = api_key or environ.get("OPENAI_API_KEY") or ""
        if not key:
            return None
        # Connections belong to the loop that opened them.
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._clients, self._loop = {}, loop
        if (base, key) not in self._clients:
            self._clients[base, key] = _opened(library, base, key)
        return self._clients[base, key]

    async def close(self) -> None:
        """Close their connections; a later request opens new ones."""
        clients, self._clients = self._clients, {}
        if self._loop is asyncio.get_running_loop():
            for client in clients.values():
                await client.close()


def _opened(library: Any, base: str, key: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI
    from openai.resources.chat.completions import AsyncCompletions
    from openai.types.chat import ChatCompletion

    class Completions(AsyncCompletions):
        async def create(self, *, extra_body: Any = None, **request: Any) -> Any:
            """Ask; the long parts of the request go out as they are."""
            beside = {name: request[name] for name in _LONG if request.get(name)}
            short: dict[str, list[Any]] = {name: [] for name in beside}
            raw = await super().create(**{**request, **short}, extra_body={**beside, **(extra_body or {})})
            raws = _raws.get()
            if raws is not None and not request.get("stream"):
                answer = raw.parse()
                if isinstance(answer, ChatCompletion) and not getattr(answer, "error", None):
                    raws.append(answer.model_copy(deep=True))
                    for choice in getattr(answer, "choices", None) or ():
                        # LiteLLM fails at a list, and pydantic warns of it with the text.
                        if not isinstance(getattr(choice.message, "content", None), str | None):
                            choice.message.content = None
            return raw

    client = AsyncOpenAI(
        api_key=key,
        base_url=base or None,
        max_retries=0,
        http_client=library.AsyncHTTPHandler().client,
    )
    client.chat.completions = Completions(client)  # type: ignore[misc]
    return client
