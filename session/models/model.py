"""What language and embedding models are to this package, and ``echo``, the model without a network."""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from math import hypot, isfinite
from operator import add, mul
from typing import Any, Literal, Protocol, runtime_checkable

from session.errors import BadAnswer, ModelAway

# In the shape of OpenAI's chat completions: role, content, tool_calls or tool_call_id, name.
Message = Mapping[str, Any]
OnDelta = Callable[[str], None]
# The parts of a message that are not text.
PartKind = Literal["image", "pdf"]


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it; ``parameters`` is a JSON Schema object, which nobody changes."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @cached_property
    def chars(self) -> int:
        """How many characters it takes in a request."""
        return len(self.name) + len(self.description) + len(json.dumps(dict(self.parameters)))


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: messages oldest first, the tools on offer, and the name of the one that is forced, if any.

    ``model`` is empty for the configured one; background work names the small one.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    force_tool: str = ""
    max_tokens: int | None = None
    model: str = ""
    # Further arguments as a client gave them; ``tools`` of OpenAI's form may be among them.
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; ``arguments`` is its JSON text, unchecked.

    ``opaque`` holds fields of it that the provider wants back.
    """

    id: str
    name: str
    arguments: str
    opaque: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request or of several, as the provider counted them, and their price.

    Of the ``prompt``, ``cached`` tokens were read from the provider's cache and ``cache_written`` ones put
    there. ``unpriced`` tokens, whose price nobody knows, are not in ``cost_usd``.
    """

    prompt: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    cached: int = 0
    cache_written: int = 0
    unpriced: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Sum up what two requests cost."""
        return Usage(*map(add, astuple(self), astuple(other)))

    @property
    def price(self) -> float | None:
        """Dollars; None where no price of any token is known."""
        return self.cost_usd if self.cost_usd or not self.unpriced else None

    def fields(self) -> dict[str, int | float | None]:
        """Return it as lines and traces hold it; without ``unpriced`` a cost of 0 is not known at all."""
        found = {"prompt": self.prompt, "completion": self.completion, "cost_usd": self.price}
        caches = {"cached": self.cached, "cache_written": self.cache_written}
        found |= {name: count for name, count in caches.items() if count}
        read_as = 0 if self.cost_usd else self.prompt + self.completion
        return found if self.unpriced == read_as else found | {"unpriced": self.unpriced}

    def shown(self) -> dict[str, int | float | None]:
        """Return it as a sum that other programs see."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "cached_tokens": self.cached,
            "cache_written_tokens": self.cache_written,
            "unpriced_tokens": self.unpriced,
            "cost_usd": None if self.price is None else round(self.price, 6),
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a session or a day: exchanges that people opened, and what all requests used."""

    turns: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Payer:
    """For whom a request counts: its conversation, who asked, the cron job that it is for.

    ``id`` is the message that is answered; of a call that is no turn's own another that nothing else has.
    """

    key: str
    person: str = ""
    job: str = ""
    id: str = ""

    @property
    def job_id(self) -> str:
        """The cron job, also of what the background does for the job's own conversation."""
        return self.job or (self.key.removeprefix("cron:") if self.key.startswith("cron:") else "")


@dataclass(frozen=True, slots=True)
class Need:
    """What a request may take at most: tokens, with the answer's, and dollars; None: no price is known."""

    tokens: int = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``extra`` holds fields of the assistant message to keep (``reasoning_content`` …)."""

    text: str
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage | None = None
    finish: Literal["stop", "tool_calls", "length"] = "stop"
    extra: Mapping[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """A language model: ask it with messages, get one answer."""

    @property
    def name(self) -> str:
        """The name it is configured by."""
        ...

    @property
    def plain(self) -> bool:
        """Whether it needs no history, tools or background work (``echo``)."""
        ...

    def takes(self, part: PartKind) -> bool:
        """Say whether a user message may hold such parts; it may block, so it is asked in a thread."""
        return False

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        """Answer ``prompt``; ``on_delta`` receives the text piece by piece as it is written.

        Raises:
            ModelAway: unreachable, rate-limited, or credentials or quota refused.
            ModelRefused: this request is refused for good.
            ContextTooLong: it does not fit the window.
            BadAnswer: neither text nor a tool call came back.
        """
        ...


@runtime_checkable
class Warms(Protocol):
    """What a model may do besides: load what its first request needs before that request's time counts."""

    async def warm(self) -> None:
        """Load it, which may take seconds; at once where that is done."""
        ...


@runtime_checkable
class Prices(Protocol):
    """What a model may do besides: say before a request what it may cost."""

    def most(self, prompt: Prompt, tokens: int) -> Need:
        """Return what a request of so many tokens may take with its answer; it may block."""
        ...


@runtime_checkable
class Foresees(Protocol):
    """What a model may do besides: say without a request that none can succeed."""

    def trouble(self) -> ModelAway | None:
        """Return why, as a request would raise it; None where only a request can tell."""
        ...


Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector of length 1 for each text that was asked, in their order, and what they cost."""

    vectors: Sequence[Vector]
    usage: Usage = Usage()


class Embedder(Protocol):
    """An embedding model: texts in, one vector each out; similar texts have similar vectors."""

    @property
    def name(self) -> str:
        """The name it is configured by, and where it is served: vectors of two names are never compared."""
        ...

    async def warm(self) -> None:
        """Load what the first request needs, which may take seconds."""
        ...

    async def close(self) -> None:
        """Let go of what it holds; nothing is asked afterwards."""
        ...

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed ``texts``; one request, no second try.

        Raises:
            ModelAway: unreachable, rate-limited, or credentials or quota refused.
            ModelRefused, ContextTooLong: these texts are refused for good.
            BadAnswer: not one sound vector for each text, all of one length.
        """
        ...


@runtime_checkable
class PricesTexts(Protocol):
    """What an embedding model may do besides: say before a request what it may cost."""

    def most(self, tokens: int) -> Need:
        """Return what a request of so many tokens may take; it may block."""
        ...


class Echo:
    """Repeats the newest message as ``echo: <text>`` after ``delay_s`` seconds, without a network."""

    name = "echo"
    plain = True

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s

    def takes(self, part: PartKind) -> bool:
        """Take nothing but text."""
        return False

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        """Answer with the last message's text."""
        if self._delay_s > 0:
            await asyncio.sleep(self._delay_s)
        text = f"echo: {prompt.messages[-1]['content']}"
        if on_delta is not None:
            on_delta(text)
        return Answer(text)


# Four bytes a number round a vector's length: so far from 1 it may be.
_SPARE = 0.01


def unit_vectors(data: object, count: int) -> list[Vector]:
    """Read the ``data`` of an embedding answer: ``count`` vectors, in the order that was asked.

    Raises:
        ValueError: fewer or more vectors, not all of one length, or one without a direction.
    """
    items = list(data) if isinstance(data, list | tuple) else []
    if len(items) != count:
        raise ValueError(f"{len(items)} vectors for {count} texts")
    # Providers may answer in another order, and then say by an index which text each vector is of.
    indexes = [_field(item, "index") for item in items]
    if sorted(index for index in indexes if isinstance(index, int)) == list(range(count)):
        items.sort(key=lambda item: int(_field(item, "index")))
    vectors = [_unit(_field(item, "embedding")) for item in items]
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("vectors of several lengths in one answer")
    return vectors


def cosine(left: Vector, right: Vector) -> float:
    """Compare two vectors of length 1, and of the same number of dimensions."""
    return float(sum(map(mul, left, right)))


def to_bytes(vector: Vector) -> bytes:
    """Write a vector as four bytes a dimension."""
    return array("f", vector).tobytes()


def from_bytes(data: bytes) -> Vector | None:
    """Read a vector; None for what ``to_bytes`` cannot have written."""
    vector = array("f")
    if not data or len(data) % vector.itemsize:
        return None
    vector.frombytes(data)
    return vector if abs(hypot(*vector) - 1) < _SPARE else None


def _unit(numbers: object) -> Vector:
    if not isinstance(numbers, Iterable) or isinstance(numbers, str | bytes | Mapping):
        raise ValueError("a vector that is not a list of numbers")
    try:
        raw = array("d", numbers)
    except (TypeError, OverflowError) as error:
        raise ValueError("a vector that is not a list of numbers") from error
    length = hypot(*raw)
    if not isfinite(length) or length == 0:
        raise ValueError("a vector of length 0")
    unit = array("f", (number / length for number in raw))
    if not abs(hypot(*unit) - 1) < _SPARE:
        raise ValueError("a vector of length 0")
    return unit


def _field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


_PAGE = re.compile(r"\s*(?:```\w*\s*)?(?:<!doctype\s+html|<html\b|<\?xml\b)", re.IGNORECASE)
_OF_ERRORS = {"error", "message", "type", "code", "status", "detail"}


def is_error_page(text: str) -> bool:
    """Say whether a server's error came through as if the model had said it."""
    low = text.lower()
    if _PAGE.match(text) or ("<html" in low and "</html>" in low):
        return True
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and "error" in body and set(body) <= _OF_ERRORS


def text_of(answer: Answer) -> str:
    """Return the text of an answer that has to be prose.

    Raises:
        BadAnswer: it calls a tool, is empty or an error page, or was cut off.
    """
    text = answer.text.strip()
    if answer.tool_calls:
        raise BadAnswer("the model called a tool instead of writing")
    if not text:
        raise BadAnswer("the model wrote nothing")
    if is_error_page(text):
        raise BadAnswer("the answer looks like an error page")
    if answer.finish == "length":
        raise BadAnswer("the answer was cut off")
    return text


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request that is over.

    Args:
        model: who was asked, as configured.
        began_ns: when, in nanoseconds since 1970.
        took_s: until its end.
        first_s: until the first piece of text; None: there was none.
        usage: as the provider counted it; None where it failed, or nobody counted.
        failed: the class of its error; empty: it was answered.
    """

    model: str
    began_ns: int
    took_s: float
    first_s: float | None
    usage: Usage | None
    failed: str = ""


HeardCall = Callable[[ModelCall], None]
