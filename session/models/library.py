"""LiteLLM itself: imported once per process, in a thread, and kept quiet; its OpenAI clients and its prices.

It retries nothing here, prints nothing, loads no file from the network and keeps no log of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from session.errors import ModelAway

if TYPE_CHECKING:
    from openai import AsyncOpenAI


CONNECT_S = 10.0
# A server at home asks for no key, but the OpenAI client refuses to start without one.
DUMMY_KEY = "none"
_ENVIRONMENT = {
    # LiteLLM would load its price map from the network at each start.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    # In any other mode LiteLLM reads the .env of the folder that the gateway is started in.
    "LITELLM_MODE": "PRODUCTION",
}
_UNLOADED_HINT = (
    "see the cause: the temporary folder may be missing (set TMPDIR), or the installation damaged"
)
_loading = threading.Lock()
_library: Any = None
_fault: ModelAway | None = None


def fault() -> ModelAway | None:
    """Return why the last import of LiteLLM failed; None where it succeeded, or none was tried."""
    return _fault


def loaded() -> Any:
    """Return LiteLLM; None: it was not imported so far."""
    return _library


async def warm() -> None:
    """Import LiteLLM in a thread, which takes seconds; at once where that is done.

    Raises:
        ModelAway: it cannot be imported; the next call tries again.
    """
    if _library is None:
        await asyncio.to_thread(load)


def timeouts(seconds: float) -> Any:
    """Limit the silence of a server, and how long it takes to reach it."""
    import httpx

    return httpx.Timeout(seconds, connect=min(CONNECT_S, seconds))


def load() -> Any:
    """Import and quieten LiteLLM; return it. Raises ModelAway as ``warm`` does."""
    global _library, _fault  # noqa: PLW0603 - one import per process
    # Two threads that import LiteLLM at once meet modules that are half made.
    with _loading:
        if _library is not None:
            return _library
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import litellm
        except Exception as error:
            cause = f"LiteLLM cannot be loaded: {type(error).__name__}: {error}"
            _fault = ModelAway(cause, cause="unreachable", hint=_UNLOADED_HINT)
            raise _fault from error
        library = cast("Any", litellm)
        library.suppress_debug_info = True
        library.telemetry = False
        library.num_retries = None
        # LiteLLM retries an embedding so often unless the call itself names a number.
        library.DEFAULT_MAX_RETRIES = 0
        # It would price each answer, of a stream before its first word, for readers that it does not have.
        library.response_cost_calculator = _nothing
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
            logger = logging.getLogger(name)
            # The library's own handler writes to stderr beside the log of the process.
            logger.handlers.clear()
            logger.setLevel(logging.WARNING)
        asyncio.run(_rehearse(library))
        _library, _fault = library, None
        return library


def _nothing(**_: Any) -> None:
    """Say that a cost is not known: what an answer cost is counted by its usage (``prices``)."""


async def _rehearse(library: Any) -> None:
    """Answer once without a network and fail once at an address that nobody can have, in this thread.

    The first calls load as much as the import does.
    """
    arguments = {"model": "openai/rehearsal", "messages": [{"role": "user", "content": "x"}], "stream": True}
    arguments |= {"api_base": "http://127.0.0.1:0/v1", "api_key": DUMMY_KEY, "timeout": timeouts(1.0)}
    arguments |= {"num_retries": 0, "max_retries": 0, "_skip_mcp_handler": True}
    with suppress(Exception):
        library.get_supported_openai_params(model="openai/rehearsal")
        library.cost_per_token(model="gpt-4o-mini", prompt_tokens=1, completion_tokens=1)
        async for _ in await library.acompletion(**arguments, mock_response="x"):
            pass
    with suppress(Exception):
        await library.acompletion(**arguments)
    await disconnect(library)


async def disconnect(library: Any) -> None:
    """Close LiteLLM's connections, and have it forget them: a later request would be given a closed one."""
    await library.close_litellm_async_clients()
    library.in_memory_llm_clients_cache.flush_cache()


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

        An empty ``api_base`` or ``api_key`` means the environment's. LiteLLM's connections are used, with
        what its environment says of proxies and TLS.
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


# They serve models on one's own machine. Whatever else has a price of 0 in LiteLLM's map has none.
_AT_HOME = frozenset({"ollama", "ollama_chat", "llamafile", "lm_studio", "lemonade", "docker_model_runner"})


def dollars(library: Any, model: str, **counts: Any) -> float | None:
    """Price tokens by LiteLLM's map; None for a model that has no price there.

    ``counts`` are ``usage_object``, else ``prompt_tokens`` and ``completion_tokens``; not all of them 0.
    """
    if model.partition("/")[0] in _AT_HOME:
        return 0.0
    try:
        return float(sum(library.cost_per_token(model=model, **counts))) or None
    except Exception:  # noqa: BLE001 - LiteLLM raises a bare Exception for a model without a price
        return None
