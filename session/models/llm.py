"""Language models through LiteLLM: one request in, one answer out, every failure one of ours."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import structlog

import durable
from session.errors import (
    BadAnswer,
    ContextTooLong,
    EmptyAnswer,
    ModelAway,
    ModelError,
    ModelFailed,
    ModelRefused,
)
from session.models import library
from session.models.assembly import Assembly, counts_of, put_back
from session.models.credentials import lacks_key, no_key, owner_of
from session.models.failure import classified, cleaned
from session.models.library import OpenAIClients, dollars, raw_answers, whole_instead
from session.models.model import (
    Answer,
    Embedded,
    HeardCall,
    Message,
    ModelCall,
    Need,
    OnDelta,
    PartKind,
    Prompt,
    ToolSpec,
    Usage,
    unit_vectors,
)
from session.models.reductions import (
    GO_WITHOUT,
    LIMITS,
    WINDOW_HINT,
    Reduced,
    Reductions,
    complaint_of,
    is_short,
    names_files,
    smaller,
)
from session.models.tokens import estimate_messages, estimate_tools, most_tokens

EMBEDDING_THREADS = 4
# A request that is larger than the provider's rate limit fits its model's window.
TOO_MANY_REQUESTS = 429
# Something on the way that cuts connections on which nothing moves waits for no less than this.
SILENCE_S = 20.0
# In so many rounds of the loop a piece goes from here to whoever reads along; the first is waited for.
FIRST_ROUNDS = 3

_CUT_HINT = "an idle connection was closed before the answer arrived; from now on answers are streamed"

_COUNT_HINT = "the server counts more tokens than the request has bytes; an estimate is used instead"

log = structlog.get_logger("model")


class Written:
    """Passes the text of an answer on, and remembers whether there was any, and when."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self.any = False
        self.first_at: float | None = None
        self._on_delta = on_delta

    @property
    def shown(self) -> bool:
        """Whether somebody reads the text as it is written."""
        return self._on_delta is not None

    def __call__(self, text: str) -> None:
        """Take the next piece."""
        if self.first_at is None:
            self.first_at = durable.monotonic()
        if self._on_delta is not None:
            self.any = True
            self._on_delta(text)


class LiteLLM:
    """A model that LiteLLM knows by name, with others to fall back on."""

    plain = False

    def __init__(
        self,
        *,
        name: str,
        api_base: str = "",
        api_key: str = "",
        timeout_s: float = 120.0,
        answer_timeout_s: float = 600.0,
        max_output_tokens: int = 4096,
        fallbacks: Sequence[str] = (),
        small: str = "",
        streams: bool = False,
        silence_s: float = SILENCE_S,
        takes: Sequence[PartKind] = (),
        cache: bool = True,
        heard: HeardCall | None = None,
    ) -> None:
        """Keep the values; nothing is imported or connected yet.

        Args:
            name: as LiteLLM writes it, ``provider/model``, or ``model`` where LiteLLM knows whose it is.
            api_base: the server's address; with ``api_key`` it serves every model of ``name``'s provider,
                never one of another provider.
            api_key: empty means the provider's own environment variable, or a dummy with ``api_base``.
            timeout_s: how long the server may be silent; a whole answer has to be there by then.
            answer_timeout_s: how long one answer may take, even where its stream keeps moving.
            max_output_tokens: where the prompt names none.
            fallbacks: asked in this order when the model before is away or refuses.
            small: a cheaper model for background work; empty means ``name``.
            streams: ask for a stream also where nobody reads along.
            silence_s: once a whole answer was cut off no sooner than this, all are asked for as streams.
            takes: what the model reads beyond text; empty: LiteLLM's table, else tried and remembered.
            cache: mark what stays the same in requests, for providers that cache nothing else.
            heard: is told of each request when it is over.
        """
        self.name = name
        self.small = small or name
        self.fallbacks = tuple(fallbacks)
        self._streams, self._silence_s = streams, silence_s
        self._heard = heard
        self._api_base = api_base
        self._api_key = api_key
        self._timeout_s, self._answer_timeout_s = timeout_s, answer_timeout_s
        self._max_output_tokens = max_output_tokens
        self._supported: dict[str, frozenset[str]] = {}
        self._priced: dict[str, bool] = {}
        self._takes, self._cache = frozenset(takes), cache
        self._reductions = Reductions()
        # Models whose impossible counts were logged.
        self._miscounted: set[str] = set()
        self._clients = OpenAIClients()

    def trouble(self) -> ModelAway | None:
        """Return why no request can succeed, where that is known without one: nowhere is there a key."""
        if all(self._lacks_key(model) for model in (self.name, *self.fallbacks)):
            return no_key(self.name)
        return library.fault()

    async def warm(self) -> None:
        """Import LiteLLM in a thread, once per process; takes seconds and stalls the loop now and then.

        Without a key no request will be made, so nothing is imported.
        """
        if not all(self._lacks_key(model) for model in (self.name, self.small, *self.fallbacks)):
            await library.warm()

    async def close(self) -> None:
        """Close the connections that LiteLLM keeps for this process."""
        await self._clients.close()
        if library.loaded() is not None:
            await library.disconnect(library.loaded())

    async def context_window(self, name: str = "") -> int:
        """Return how many tokens a model takes, 0 where LiteLLM's table does not know it."""
        await self.warm()
        if library.loaded() is None:
            return 0
        try:
            info = library.loaded().get_model_info(name or self.name)
        except Exception:  # noqa: BLE001 - an unknown model is no failure; LiteLLM raises a bare Exception
            return 0
        return int(info.get("max_input_tokens") or 0)

    def most(self, prompt: Prompt, tokens: int) -> Need:
        """Price a request at the dearest model that may be asked; imports LiteLLM, as ``takes`` does."""
        answer = prompt.max_tokens or self._max_output_tokens
        asked = {prompt.model or self.name, *self.fallbacks}
        models = [model for model in asked if not self._lacks_key(model)]
        lib = library.load() if models else None
        known = [self._most(lib, model, tokens, answer) for model in models]
        priced = [cost for cost in known if cost is not None]
        return Need(tokens + answer, max(priced, default=None if models else 0.0))

    def _most(self, lib: Any, model: str, tokens: int, answer: int) -> float | None:
        counts = {"prompt_tokens": tokens, "completion_tokens": answer}
        if self._marks(model, self._reductions.of(model)):
            # All of it may have to be written to the cache, which is dearer.
            counts["cache_creation_input_tokens"] = tokens
        return dollars(lib, model, **counts)

    def _marks(self, model: str, reduced: Reduced) -> bool:
        return self._cache and "cache" not in reduced.without and wants_marks(model, provider_of(model))

    def takes(self, part: PartKind) -> bool:
        """Say whether a request may hold such parts; imports LiteLLM, which takes seconds at first.

        What LiteLLM's table does not know is tried, until the provider refuses it.
        """
        if self._takes:
            return part in self._takes
        if part in self._reductions.refused_parts.get(self.name, ()):
            return False
        lib = library.load()
        asked = lib.supports_vision if part == "image" else lib.utils.supports_pdf_input
        try:
            if asked(model=self.name):
                return True
            lib.get_model_info(self.name)
        except Exception:  # noqa: BLE001 - an unknown model is no failure; LiteLLM raises a bare Exception
            return True
        hint = "if the model accepts them, set model.takes"
        self._reductions.note(self.name, part, "LiteLLM's table lists none for it", hint)
        return False

    def named_window(self) -> int:
        """Return the window that the model's server named when it refused a request; 0: it never did."""
        return self._reductions.of(self.name).window

    def notes(self) -> list[tuple[str, str]]:
        """Say what requests leave out since a provider or LiteLLM's table refuses it, each with its cure."""
        return self._reductions.notes()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        """Answer ``prompt``; see ``Model``. Cancelling closes the connection to the server at once."""
        first: ModelError | None = None
        for model in (prompt.model or self.name, *self.fallbacks):
            written = Written(on_delta)
            try:
                if self._lacks_key(model):
                    raise no_key(model)
                await library.warm()
                return await self._ask_heard(model, prompt, written)
            except (ModelAway, ModelFailed, ModelRefused) as error:
                # The chat has seen half of an answer: a second one would be written behind it.
                if written.any:
                    raise
                if first is None or (isinstance(first, ModelRefused) and isinstance(error, ModelAway)):
                    first = error
            except ContextTooLong:
                # What a fallback does not take, the first model may, as soon as it is back; one without a key
                # never is.
                if not isinstance(first, ModelAway) or first.cause == "credentials" or written.any:
                    raise
        assert first is not None
        raise first

    def _lacks_key(self, model: str) -> bool:
        own = provider_of(model) == provider_of(self.name)
        return not (own and (self._api_base or self._api_key)) and lacks_key(model)

    async def _ask_heard(self, model: str, prompt: Prompt, written: Written) -> Answer:
        """Ask, and tell of the request when it is over."""
        answer, failed = None, ""
        began_ns, began = durable.wall_ns(), durable.monotonic()
        try:
            answer = await self._ask_twice(model, prompt, written)
            return answer
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            if self._heard is not None:
                first_s = written.first_at - began if written.first_at is not None else None
                usage = answer.usage if answer is not None else None
                self._heard(ModelCall(model, began_ns, durable.monotonic() - began, first_s, usage, failed))

    async def _ask_twice(self, model: str, prompt: Prompt, written: Written) -> Answer:
        """Ask once more where an answer was empty, which passes; not as a stream: some servers know none."""
        try:
            return await self._ask_one(model, prompt, written)
        except EmptyAnswer as error:
            if written.any:
                raise
            empty = error
        answer = await self._ask_one(model, prompt, Written(None))
        if written.shown and answer.text:
            written(answer.text)
        spent = answer.usage and empty.usage and answer.usage + empty.usage
        return replace(answer, usage=spent or answer.usage)

    async def _ask_one(self, model: str, prompt: Prompt, written: Written) -> Answer:
        """Ask; where a refusal names a part of the request, make it once more without that part."""
        reduced, said = self._reductions.of(model), dict[str, str]()
        while True:
            sent = self._arguments(model, prompt, reduced, stream=self._streams or written.shown)
            try:
                answer = await self._request(model, prompt, sent, written)
            except ModelError as error:
                # Else there are no words of the provider's: the answer was odd, or none came.
                refused = not isinstance(error.__cause__, (TimeoutError, type(None))) and not written.any
                found = self._smaller(error, model, prompt, reduced, sent) if refused else None
                if found is None:
                    if isinstance(error, BadAnswer) and error.__cause__ is None:
                        # It was answered, though in a way that is of no use.
                        self._reductions.keep(model, reduced, said)
                    raise
                reduced, name, words = found
                said[name] = words
            else:
                self._reductions.keep(model, reduced, said)
                return answer

    def _smaller(
        self,
        error: ModelError,
        model: str,
        prompt: Prompt,
        reduced: Reduced,
        sent: Mapping[str, Any],
    ) -> tuple[Reduced, str, str] | None:
        """Say what a refused request leaves out, the name of that, and the provider's words."""
        complaint = complaint_of(error, model)
        # The provider's own, without those of messages.
        words = error.brief.removeprefix(f"{model}: ")
        too_long = isinstance(error, ContextTooLong) and complaint.status != TOO_MANY_REQUESTS
        if too_long:
            self._reductions.learn_window(model, complaint.words)
        tokens = estimate_messages(prompt.messages) + estimate_tools(prompt.tools)
        found = smaller(complaint, reduced, sent=sent, tokens=tokens, too_long=too_long)
        if found is not None:
            return (*found, words)
        if too_long and is_short(complaint, asked=self._max_output_tokens, tokens=tokens):
            # No shorter conversation would help: the chat is not told to begin another one.
            error.said = ModelRefused.said
            error.hint = error.hint or WINDOW_HINT
        if (kinds := _files_in(prompt)) and names_files(complaint):
            if not self._takes:
                self._reductions.refuse_parts(model, kinds, words)
            refused = ModelRefused(str(error), hint=error.hint)
            refused.brief = error.brief
            raise refused from error
        choice = sent.get("tool_choice")
        if isinstance(choice, dict) and isinstance(error, ModelRefused):
            # Some providers refuse to be told which tool to call, and do not say so: the model may choose.
            return replace(reduced, without=reduced.without | {"tool_choice"}), "tool_choice", words
        return None

    async def _request(
        self, model: str, prompt: Prompt, arguments: Mapping[str, Any], written: Written
    ) -> Answer:
        stream = arguments["stream"]
        answer, loop = Assembly(), asyncio.get_running_loop()
        began = loop.time()
        try:
            # The client's own limit is on bytes, and the comments that keep a stream alive are no answer.
            async with asyncio.timeout(self._timeout_s) as limit:

                def moved() -> None:
                    limit.reschedule(min(loop.time() + self._timeout_s, began + self._answer_timeout_s))

                if stream:
                    await _read(arguments, answer, written, moved)
                else:
                    answer.take(await _whole(arguments))
        except TimeoutError as error:
            raise self._timed_out(model, answer, loop.time() - began) from error
        except ModelError as error:
            error.brief = f"{model}: {error}"
            error.args = (cleaned(f"{model}: {error}", secrets=(self._api_key,)),)
            raise
        except Exception as error:
            ours = classified(
                error, model=model, secrets=(self._api_key,), begun=answer.begun, messages=prompt.messages
            )
            self._note_cut(model, ours, loop.time() - began)
            raise ours from error
        self._check_count(model, prompt, answer)
        try:
            return answer.answer(self._cost(model, answer.usage), model=model)
        except ModelError as error:
            error.brief = f"{model}: {error}"
            raise

    def _timed_out(self, model: str, answer: Assembly, after_s: float) -> ModelError:
        """Tell silence before an answer, which is an outage, from one that stopped or never ended."""
        if answer.begun:
            return ModelFailed(f"{model}: the answer was not complete after {after_s:.0f} s")
        error = ModelAway(f"{model}: no answer in {self._timeout_s:g} s", cause="unreachable")
        self._note_cut(model, error, after_s)
        return error

    def _check_count(self, model: str, prompt: Prompt, answer: Assembly) -> None:
        """Put our own estimate in place of a count of the request that cannot be."""
        counted, completion = counts_of(answer.usage) if answer.usage is not None else (0, 0)
        local = estimate_messages(prompt.messages) + estimate_tools(prompt.tools)
        if counted <= 4 * local or counted <= (most := most_tokens(prompt.messages, prompt.tools)):
            return
        answer.usage = SimpleNamespace(prompt_tokens=local, completion_tokens=completion)
        if model not in self._miscounted:
            self._miscounted.add(model)
            log.warning("model.miscounts", model=model, counted=counted, most=most, hint=_COUNT_HINT)

    def _note_cut(self, model: str, error: ModelError, after_s: float) -> None:
        """Ask for streams from now on where something may have cut a connection on which nothing moved."""
        cut = isinstance(error, ModelAway) and error.cause == "unreachable" and after_s >= self._silence_s
        if cut and not self._streams:
            self._streams = True
            log.warning("model.streams", model=model, after_s=round(after_s, 1), hint=_CUT_HINT)

    def _arguments(self, model: str, prompt: Prompt, reduced: Reduced, *, stream: bool) -> dict[str, Any]:
        """Build the call; what the provider does not know, or refused before, is left out."""
        supported, without = self._supports(model), reduced.without
        prompt = reduced.prompt(prompt)
        max_tokens = prompt.max_tokens or self._max_output_tokens
        if reduced.max_tokens:
            max_tokens = min(max_tokens, reduced.max_tokens)
        wanted: dict[str, Any] = {"max_tokens": max_tokens}
        if prompt.tools:
            wanted |= {"tools": [_described(tool) for tool in prompt.tools], "tool_choice": "auto"}
        if prompt.force_tool and "tool_choice" not in without:
            wanted["tool_choice"] = {"type": "function", "function": {"name": prompt.force_tool}}
        arguments = {key: value for key, value in wanted.items() if not supported or key in supported}
        if "tools" in wanted and "tools" not in arguments:
            hint = f'write "ollama_chat/{model[7:]}"' if model.startswith("ollama/") else GO_WITHOUT
            self._reductions.note(model, "tools", "LiteLLM's table lists none for it", hint)
        if refused := [name for name in LIMITS if name in without]:
            # By LiteLLM's table it would go out under the refused name again.
            other = LIMITS[1 - LIMITS.index(refused[0])]
            arguments["extra_body"] = {other: arguments.pop("max_tokens", max_tokens)}
        # Without _skip_mcp_handler LiteLLM imports a package that is not installed here.
        arguments |= {"num_retries": 0, "max_retries": 0, "_skip_mcp_handler": True}
        messages = legal_ids(prompt.messages)
        for message in messages:
            put_back(message, model)
        if self._marks(model, reduced):
            mark(messages, in_parts=provider_of(model) == "openrouter")
        stream = stream and "stream" not in without
        arguments |= {"model": model, "messages": messages, "stream": stream}
        arguments["timeout"] = library.timeouts(self._timeout_s)
        if stream and "stream_options" not in without:
            # LiteLLM sends it to those who know it, and keeps the count of all others back without it.
            arguments["stream_options"] = {"include_usage": True}
        access: dict[str, str] = {}
        if provider_of(model) == provider_of(self.name):
            access = _access(self._api_base, self._api_key)
        if provider_of(model) == "openai":
            base, key = access.get("api_base", ""), access.get("api_key", "")
            arguments["client"] = self._clients.client(library.loaded(), api_base=base, api_key=key)
        return {**arguments, **prompt.parameters, **access}

    def _supports(self, model: str) -> frozenset[str]:
        if model not in self._supported:
            try:
                known = library.loaded().get_supported_openai_params(model=model) or ()
            except Exception:  # noqa: BLE001 - an unknown provider is told by the request itself
                known = ()
            self._supported[model] = frozenset(known)
        return self._supported[model]

    def _cost(self, model: str, usage: Any) -> float | None:
        prompt, completion = counts_of(usage)
        if not (prompt or completion):
            return 0.0
        if not self._priced.get(model, True):
            return None
        # The count of a cache costs less; one that is odd must not be taken for a model without a price.
        cost = dollars(library.loaded(), model, usage_object=usage)
        if cost is None or cost < 0:
            cost = dollars(library.loaded(), model, prompt_tokens=prompt, completion_tokens=completion)
        self._priced[model] = cost is not None
        return cost


class LiteLLMEmbedder:
    """An embedding model that LiteLLM knows by name."""

    def __init__(self, *, name: str, api_base: str = "", api_key: str = "", timeout_s: float) -> None:
        """Keep the values; nothing is imported or connected yet.

        ``timeout_s`` is how long the server may be silent; the caller limits the whole. The rest is as of
        ``LiteLLM``.
        """
        self.name = f"{name} {api_base}".strip()
        self._model = name
        self._api_base = api_base
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embedding")

    async def warm(self) -> None:
        """Import LiteLLM, as ``LiteLLM.warm`` does."""
        await library.warm()

    async def close(self) -> None:
        """End the threads; a request that still runs in one is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def most(self, tokens: int) -> Need:
        """Price a request; imports LiteLLM, as ``warm`` does."""
        return Need(tokens, dollars(library.load(), self._model, prompt_tokens=tokens))

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed ``texts``; see ``Embedder``. In a thread, since reading an answer takes 4 ms a vector."""
        await self.warm()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._embed, list(texts))

    def _embed(self, texts: list[str]) -> Embedded:
        arguments: dict[str, Any] = {"model": self._model, "input": texts, "timeout": self._timeout_s}
        arguments |= {"num_retries": 0, "max_retries": 0, **_access(self._api_base, self._api_key)}
        try:
            answer = library.loaded().embedding(**arguments)
        except Exception as error:
            raise classified(error, model=self._model, secrets=(self._api_key,)) from error
        try:
            vectors = unit_vectors(answer.data, len(texts))
        except ValueError as error:
            raise BadAnswer(f"{self._model}: {error}") from error
        tokens = int(getattr(answer.usage, "prompt_tokens", 0) or 0)
        cost = dollars(library.loaded(), self._model, prompt_tokens=tokens)
        unpriced = tokens if cost is None else 0
        return Embedded(vectors, Usage(tokens, cost_usd=cost or 0.0, unpriced=unpriced))


def _files_in(prompt: Prompt) -> set[PartKind]:
    kinds: dict[object, PartKind] = {"image_url": "image", "file": "pdf"}
    contents = (message.get("content") for message in prompt.messages)
    blocks = (block for content in contents if isinstance(content, list) for block in content)
    return {kinds[block.get("type")] for block in blocks if block.get("type") in kinds}


def _described(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def provider_of(model: str) -> str:
    """Return who serves a model, as LiteLLM writes it.

    A name without a slash whose family is not known stands for itself: such a model shares its key with none.
    """
    provider, slash, _ = model.partition("/")
    return provider if slash else owner_of(model) or model


def _access(api_base: str, api_key: str) -> dict[str, str]:
    if not api_base:
        return {"api_key": api_key} if api_key else {}
    return {"api_base": api_base, "api_key": api_key or library.DUMMY_KEY}


async def _read(
    arguments: Mapping[str, Any], answer: Assembly, written: Written, moved: Callable[[], None]
) -> None:
    rounds = FIRST_ROUNDS if written.shown else 0
    async with _streamed(arguments) as stream:
        if not _is_wrapped(stream) and (instead := await whole_instead(stream.completion_stream)):
            if text := answer.take(instead):
                written(text)
            return
        done = _done_mark(stream)
        async for chunk in _pieces(stream):
            moved()
            if text := answer.add(chunk):
                written(text)
                # Of pieces that came together the first would else be seen when the last was read.
                for _ in range(rounds):
                    await asyncio.sleep(0)
                rounds = min(rounds, 1)
        if text := answer.end():
            written(text)
        if _is_wrapped(stream):
            # LiteLLM's last piece renders the provider's reason as one of OpenAI's, an error as "stop".
            answer.finish = stream.received_finish_reason or answer.finish
        answer.check_ended(ended=done.is_set() or _ended(stream, answer))


async def _whole(arguments: Mapping[str, Any]) -> Any:
    """Ask for a whole answer; return it as the server gave it, where its client is ours.

    What LiteLLM makes of it lacks how it ended, and fails where the text is a list.
    """
    with raw_answers() as raws:
        try:
            response = await library.loaded().acompletion(**arguments)
        except Exception:
            if not raws:
                raise
        return raws[-1] if raws else response


@asynccontextmanager
async def _streamed(arguments: Mapping[str, Any]) -> AsyncIterator[Any]:
    """Open the stream, and close its connection in the end: a server writes on into one that is left open."""
    stream = await library.loaded().acompletion(**arguments)
    try:
        yield stream
    finally:
        await stream.aclose()


def _ended(stream: Any, answer: Assembly) -> bool:
    """Say whether the provider itself ended the answer, by a reason or a count: LiteLLM makes up both."""
    if _is_wrapped(stream):
        return bool(stream.received_finish_reason or stream.intermittent_finish_reason)
    return bool(answer.finish or answer.usage)


def _done_mark(stream: Any) -> asyncio.Event:
    """Return what is set once the server ends its stream by ``[DONE]``, which the OpenAI client swallows."""
    done, source = asyncio.Event(), stream.completion_stream
    if not _is_wrapped(stream):
        events = source._iter_events

        async def noted() -> AsyncIterator[Any]:
            async for event in events():
                if event.data.startswith("[DONE]"):
                    done.set()
                yield event

        source._iter_events = noted
    return done


def _is_wrapped(stream: Any) -> bool:
    return type(stream.completion_stream).__module__.partition(".")[0] != "openai"


async def _pieces(stream: Any) -> AsyncIterator[Any]:
    """Yield the pieces of an answer.

    Those of the OpenAI client have the right shape already: what LiteLLM does to each of them costs
    more than the rest of the call. Those of other providers get their shape from LiteLLM.
    """
    if not _is_wrapped(stream):
        async for chunk in stream.completion_stream:
            yield chunk
        return
    async for chunk in stream:
        yield chunk


# Read within five minutes, which a turn's rounds and a running conversation are.
_MARK: Mapping[str, str] = {"type": "ephemeral"}
_PROVIDERS = frozenset(
    {"anthropic", "bedrock", "bedrock_converse", "vertex_ai", "openrouter", "azure_ai", "anthropic_text"}
)


def wants_marks(model: str, provider: str) -> bool:
    """Say whether the model's provider caches only what is marked."""
    name = model.lower()
    return provider in _PROVIDERS and (
        provider == "anthropic" or "claude" in name or "anthropic" in name.partition("/")[2]
    )


def mark(messages: list[dict[str, Any]], *, in_parts: bool) -> None:
    """Mark what stays the same: instructions (with the tools before them), history, question, newest result.

    Anthropic takes four marks. ``in_parts``: a tool's result is marked in its text, as OpenRouter wants it.
    """
    roles = [message["role"] for message in messages]
    question = max((at for at, role in enumerate(roles) if role == "user"), default=0)
    system = max((at for at, role in enumerate(roles) if role == "system"), default=-1)
    ends = {system, _markable(messages, question - 1), _markable(messages, question)}
    for at in ends | {_markable(messages, len(messages) - 1)}:
        if at >= 0:
            _set(messages[at], in_parts=in_parts)


def _markable(messages: list[dict[str, Any]], at: int) -> int:
    """Return the last message at or before ``at`` that has a text to mark; -1 where there is none."""
    while at >= 0 and not messages[at].get("content"):
        at -= 1
    return at


def _set(message: dict[str, Any], *, in_parts: bool) -> None:
    content = message["content"]
    if message["role"] == "tool" and not in_parts:
        message["cache_control"] = dict(_MARK)
    elif isinstance(content, str):
        message["content"] = [{"type": "text", "text": content, "cache_control": dict(_MARK)}]
    else:
        message["content"] = [*content[:-1], {**content[-1], "cache_control": dict(_MARK)}]


# Longer ids of tool calls come from conversations with other providers, and OpenAI refuses them.
MAX_ID_CHARS = 40


def legal_ids(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Shorten tool call ids that no provider of this kind could have given, on both sides alike.

    All that a library may change is copied: requests share the messages of a history.
    Ids in which LiteLLM carries a thought signature (Gemini) are long by nature and stay.
    """
    legal = []
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [
                {**call, "id": _short(call["id"]), "function": dict(call.get("function", ()))}
                for call in message["tool_calls"]
            ]
        if isinstance(message.get("content"), list):
            changed["content"] = deepcopy(message["content"])
        if message.get("tool_call_id"):
            changed["tool_call_id"] = _short(message["tool_call_id"])
        legal.append(changed)
    return legal


def _short(call_id: str) -> str:
    if len(call_id) <= MAX_ID_CHARS or "__thought__" in call_id:
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:24]
