"""Decides what a failed model call means: an outage, a rate limit, a refusal for good, or a counted failure.

Read from the status, the server's words and the cause, not from a library's class names. Pure.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import durable
from durable import causes
from session.errors import (
    AwayCause,
    BadAnswer,
    ContextTooLong,
    ModelAway,
    ModelError,
    ModelFailed,
    ModelRefused,
    RequestTooLarge,
)
from session.models.credentials import CONFIGURED_KEY_CURE, cure

MAX_MESSAGE_CHARS = 300
MAX_SEARCHED_CHARS = 4000
# A rate limit that met one message this often while others were answered counts against that message.
RATE_LIMITS_MAX = 20
Kind = Literal["outage", "rate_limit", "refused", "counted"]

_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|prompt is too long|input is too long"
    r"|input token count|reduce the length|request too large|request_too_large"
    # xAI, Z.ai, Moonshot, Alibaba, GitHub, Hugging Face, IBM, and Google for a request with pictures.
    r"|maximum prompt length|prompt exceeds max|model token limit|range of input length"
    r"|token count of \d+ exceeds|`?inputs`? (tokens \+|must have less than)|total tokens limit"
    r"|request payload size exceeds",
    re.IGNORECASE,
)
# A provider that limits the rate says so of all requests together: Amazon does.
_TOO_MANY = re.compile(r"too many (input )?tokens", re.IGNORECASE)
_CREDENTIALS = re.compile(
    r"missing credentials|(invalid|incorrect|missing)[^.]{0,20}api[ _]?key"
    r"|api[ _]?key[^.]{0,40}(invalid|not valid|incorrect|missing|must be set|not set|required)"
    r"|default credentials were not found|unable to locate credentials",
    re.IGNORECASE,
)
# Only LiteLLM says what is to be set here; a server that writes of one repeats what people wrote.
_UNSET = re.compile(r"environment variable", re.IGNORECASE)
_QUOTA = re.compile(
    r"credit balance|insufficient[ _](quota|credit|funds|balance)|(exceeded|out of)[^.]{0,20}(current )?quota"
    r"|exceeded_current_quota|out of credits?|billing details|account[^.]{0,40}(suspended|overdue|arrears)"
    r"|top[ -]up|recharge",
    re.IGNORECASE,
)
# Google calls a limit per minute a quota, too.
_SOON = re.compile(r"per[ _-]?(second|minute|hour|day)|(retry|try again) in", re.IGNORECASE)
# A rate limit that no waiting satisfies: the request alone is larger.
_OVER_LIMIT = re.compile(
    r"request[^.]{0,30}too large|(larger|bigger|greater) than[^.]{0,60}limit|single request", re.IGNORECASE
)
_REQUESTED = re.compile(r"limit:? ?([\d,]+)\b.{0,60}?\brequested:? ?([\d,]+)", re.IGNORECASE | re.DOTALL)
# What a 401, 403 or 404 is about; words on the content go before all others.
_CONTENT = re.compile(
    r"moderat|flagged|content[ -]?(polic|filter|management|safety|violation)|inappropriate|harm(ful|\b)"
    r"|safety|guardrail|jailbreak|usage polic|violat|prohibited (content|use)|sensitive (content|word|info)",
    re.IGNORECASE,
)
_ACCESS = re.compile(
    r"\bkeys?\b|api ?key|credential|authenticat|authori[sz]|\bauth\b|account|billing|organi[sz]ation"
    r"|\bproject\b|subscription|\bplan\b|permission|permitted|\baccess\b|not allowed to|entitled",
    re.IGNORECASE,
)
_MODEL = re.compile(r"\bmodels?\b|\bdeployment\b|\bengine\b", re.IGNORECASE)
# How providers say inside a stream, where no status can follow, that they are away.
_BUSY = re.compile(r"overloaded|service unavailable|timeout", re.IGNORECASE)
# The connection broke within the answer's body; before its first byte it is an outage.
_CUT_BODY = re.compile(r"complete message body|incomplete chunked read", re.IGNORECASE)
# A provider's error code is one word; whatever has spaces is a message and may hold text of people.
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]-]{1,60}")
_WORD = re.compile(r"\w+")
# As much of the end of each text of a request is looked for in a provider's words.
MAX_TEXT_CHARS = 20_000
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|gsk|xai|AIza|Bearer)[-_ ]?[A-Za-z0-9_\-.*]{8,}")
_TYPES = {"rate_limit": 429, "overloaded": 503, "server_error": 500, "unavailable": 503, "timeout": 503}
_AWAY_STATUSES = frozenset({408, 425, 502, 503, 504, 529})
_HINTS: dict[AwayCause, str] = {
    "rate_limit": "rate limit of the provider; the request is repeated later",
    "unreachable": "check model.api_base and the network",
    "credentials": "the key must be valid and allowed to use this model",
    "quota": "the account of the key has no credit left: add credit or raise its limit at the provider",
    "model": "correct model.name, or enable this model at the provider",
}
_NO_PROVIDER = re.compile(r"llm provider not provided|unmapped llm provider", re.IGNORECASE)
_UNKNOWN_CURE = 'correct model.name: LiteLLM expects provider/model, e.g. "openai/gpt-4.1-mini"'
_NOT_FOUND_CURE = "check model.api_base (it usually ends in /v1) and model.name"


def kind_of(error: ModelError, *, others_answered: bool = False, rate_limits: int = 0) -> Kind:
    """Decide what a failed try of a message means for it.

    ``others_answered``: the same model answered another message since the previous try of this one.
    ``rate_limits`` met this message while others were answered, this one included.
    """
    match error:
        case ModelAway(cause="rate_limit"):
            return "counted" if rate_limits >= RATE_LIMITS_MAX else "rate_limit"
        case ModelAway():
            return "counted" if others_answered else "outage"
        case BadAnswer(again=True) | RequestTooLarge():
            return "counted"
        case _:
            return "refused"


def classified(
    error: BaseException,
    *,
    model: str,
    secrets: Collection[str] = (),
    begun: bool = False,
    messages: Iterable[object] = (),
    now: datetime | None = None,
) -> ModelError:
    """Turn whatever a model call raised into one of our errors, its text free of secrets.

    ``begun``: a part of the answer had come. ``messages`` are those of the request; the words for the
    operator quote none of them. ``now`` is for a Retry-After that is a date.
    """
    chain = list(causes(error))
    ours = _meant(chain, model=model, secrets=secrets, now=now or durable.now())
    if begun and isinstance(ours, ModelAway) and ours.cause == "unreachable":
        ours = ModelFailed(str(ours))
    status, served = _status(chain), _served(chain)
    parts = [f"status {status}" if status else type(chain[-1]).__name__]
    parts += [served[name] for name in ("code", "param") if _CODE.fullmatch(served.get(name, ""))]
    said = served.get("message") or served.get("detail") or ""
    if said and status:
        said = ": " + cleaned(_unquoted(said[:MAX_SEARCHED_CHARS], messages), secrets=secrets)
    ours.brief = f"{model}: {', '.join(parts)}{said if status else ''}"
    return ours


def _unquoted(said: str, messages: Iterable[object]) -> str:
    """Leave out what a provider quotes of the conversation: three words in a row, or a whole short text."""
    texts = [" ".join(_WORD.findall(text.lower())) for text in _texts(messages)]
    spoken, short = f" {' | '.join(texts)} ", {text for text in texts if text.count(" ") < 2}
    words = list(_WORD.finditer(said))
    quoted: set[int] = set()
    for first in range(len(words)):
        for count in (1, 2, 3):
            run = " ".join(word[0].lower() for word in words[first : first + count])
            if run in short or (run.count(" ") == 2 and f" {run} " in spoken):
                quoted.update(range(first, first + count))
    for at in sorted(quoted, reverse=True):
        said = f"{said[: words[at].start()]}…{said[words[at].end() :]}"
    return re.sub(r"…[\s…]*…", "…", said)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value[-MAX_TEXT_CHARS:]
    elif isinstance(value, Mapping):
        for name in ("content", "text"):
            yield from _texts(value.get(name))
    elif isinstance(value, Iterable):
        for each in value:
            yield from _texts(each)


def _meant(chain: list[BaseException], *, model: str, secrets: Collection[str], now: datetime) -> ModelError:
    status, after_s = _status(chain), _retry_after(chain, now)
    text = cleaned(f"{model}: {f'status {status}: ' if status else ''}{_said(chain)}", secrets=secrets)
    code, words = _code(chain), " ".join(str(link)[:MAX_SEARCHED_CHARS] for link in chain)
    if status == 429 and (_TOO_LONG.search(words) or _is_over_limit(words)):
        return RequestTooLarge(text, after_s=after_s)
    if status not in (401, 402, 403, 429) and (
        _TOO_LONG.search(words) or code == "context_length_exceeded" or _TOO_MANY.search(words)
    ):
        return ContextTooLong(text)
    cause = _away(chain, status, words, limited=after_s is not None)
    if cause is not None:
        hint = _HINTS[cause]
        if cause == "credentials":
            # A key in the configuration goes before the environment's: setting that one cures nothing.
            hint = f"{CONFIGURED_KEY_CURE if any(secrets) else cure(model)}: {hint}"
        return ModelAway(text, cause=cause, after_s=after_s, hint=hint)
    if status == 413:
        return ContextTooLong(text)
    if status is not None and 400 <= status < 500:
        hint = _UNKNOWN_CURE if _NO_PROVIDER.search(words) else _NOT_FOUND_CURE if status == 404 else ""
        return ModelRefused(text, hint=hint)
    if status is not None or any(map(_is_transport, chain)):
        return ModelFailed(text)
    return BadAnswer(text)


def _is_over_limit(words: str) -> bool:
    numbers = _REQUESTED.search(words)
    if numbers is None:
        return bool(_OVER_LIMIT.search(words))
    limit, requested = (int(number.replace(",", "")) for number in numbers.groups())
    return requested > limit


def cleaned(text: str, *, secrets: Collection[str] = ()) -> str:
    """Shorten a text and take out keys: the given ones, those of the environment, and what looks like one."""
    known = {value for value in secrets if len(value) >= 4}
    known |= {
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))
    }
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, "[key]")
    text = _KEY_LIKE.sub("[key]", " ".join(text.split()))
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _status(chain: list[BaseException]) -> int | None:
    """Find the status that a server sent; a bare 500 is what libraries make up when none did."""
    for error in reversed(chain):
        if (sent := _sent_status(error)) is not None:
            return sent
    for error in reversed(chain):
        body = getattr(error, "body", None)
        if isinstance(body, Mapping) and (status := _status_in(body)) is not None:
            return status
    if any(_is_transport(error) for error in chain):
        return None
    for error in reversed(chain):
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and status >= 400 and status != 500:
            return status
    return None


def _sent_status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) and status >= 400 and _is_real(error) else None


def _is_real(error: BaseException) -> bool:
    """Say whether an error's response came over the wire: LiteLLM's own exceptions carry made-up ones."""
    return not type(error).__module__.startswith("litellm")


def _status_in(body: Mapping[str, Any]) -> int | None:
    inner = body.get("error")
    fields = inner if isinstance(inner, Mapping) else body
    for value in (fields.get("code"), fields.get("status")):
        if isinstance(value, int | str) and str(value).isdigit() and 400 <= int(value) < 600:
            return int(value)
    kind = f"{fields.get('type')} {fields.get('code')}".lower()
    return next((status for word, status in _TYPES.items() if word in kind), None)


def _away(chain: list[BaseException], status: int | None, words: str, *, limited: bool) -> AwayCause | None:
    if status == 402 or _is_empty_account(chain, status, words):
        return "quota"
    if status in (401, 403, 404):
        return _denied(status, _served(chain))
    if status in (None, 400) and _CREDENTIALS.search(words):
        return "credentials"
    if status in (None, 400) and _UNSET.search(words) and not any(map(_sent_status, chain)):
        return "credentials"
    if status == 429 or (status in (503, 529) and limited):
        return "rate_limit"
    if status in _AWAY_STATUSES:
        return "unreachable"
    if status is not None or any(map(_is_cut_body, chain)):
        return None
    failed = any(map(_is_transport, chain)) or _BUSY.match(str(chain[-1]))
    return "unreachable" if failed else None


def _is_empty_account(chain: list[BaseException], status: int | None, words: str) -> bool:
    if _code(chain) == "insufficient_quota":
        return True
    return status in (None, 400, 401, 403, 429) and bool(_QUOTA.search(words)) and not _SOON.search(words)


def _denied(status: int, served: Mapping[str, str]) -> AwayCause | None:
    """Say what a 401, 403 or 404 means, by the server's own words; None: a refusal for good."""
    words = " ".join(served.values()).replace("_", " ")[:MAX_SEARCHED_CHARS]
    if _CONTENT.search(words):
        return None
    if status == 401 or _ACCESS.search(words):
        return "credentials"
    return "model" if _MODEL.search(words) else None


def _served(chain: list[BaseException]) -> dict[str, str]:
    """Return what the server itself said of the failure: ``message``, ``code``, ``type`` and ``param``."""
    for error in reversed(chain):
        body = getattr(error, "body", None)
        module = type(error).__module__
        if body is None and module.startswith("litellm.llms") and "custom_httpx" not in module:
            body = _parsed(str(error))
        inner = body.get("error", body) if isinstance(body, Mapping) else body
        if isinstance(inner, str):
            return {"message": inner}
        if isinstance(inner, Mapping):
            return {
                name: str(inner[name])
                for name in ("message", "detail", "code", "type", "param")
                if inner.get(name)
            }
    return {}


def _parsed(text: str) -> object:
    begin, end = text.find("{"), text.rfind("}") + 1
    try:
        return json.loads(text[begin:end]) if begin >= 0 else text
    except (ValueError, RecursionError):
        return text


def _is_transport(error: BaseException) -> bool:
    """Say whether the network failed: by the system's classes, and by the module of the HTTP clients' own."""
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError):
        return True
    return bool(
        _names(error)
        & {"httpx.TransportError", "aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError"}
    )


def _is_cut_body(error: BaseException) -> bool:
    return "aiohttp.ClientPayloadError" in _names(error) or (
        "httpx.RemoteProtocolError" in _names(error) and bool(_CUT_BODY.search(str(error)))
    )


def _names(error: BaseException) -> set[str]:
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}


def _said(chain: list[BaseException]) -> str:
    """Return the server's own words where there are some, else those of the innermost cause."""
    served = _served(chain)
    if said := served.get("message") or served.get("detail"):
        return said
    cause = chain[-1] if _status(chain) is None else chain[0]
    return f"{type(cause).__name__}: {cause}"


def _code(chain: list[BaseException]) -> str:
    return _served(chain).get("code", "")


def _retry_after(chain: list[BaseException], now: datetime) -> float | None:
    for error in reversed(chain):
        headers = getattr(getattr(error, "response", None), "headers", None) or getattr(
            error, "headers", None
        )
        if not isinstance(headers, Mapping):
            continue
        for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
            value = str(headers.get(name) or "").strip()
            if re.fullmatch(r"\d+(\.\d+)?", value):
                return float(value) / scale
            if value and name == "retry-after":
                return _seconds_until(value, now)
    return None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        return max((parsedate_to_datetime(date).astimezone(UTC) - now).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None
