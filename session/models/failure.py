"""What a failed model call means, read from the status and the cause and not from a library's class names."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from durable import causes
from session.errors import AwayCause, BadAnswer, ContextTooLong, ModelAway, ModelError, ModelRefused
from session.models.credentials import CONFIGURED_KEY_CURE, cure

MAX_MESSAGE_CHARS = 300
MAX_SEARCHED_CHARS = 4000

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
_QUOTA = re.compile(r"credit balance|insufficient[ _](quota|credit|funds|balance)", re.IGNORECASE)
# How providers say inside a stream, where no status can follow, that they failed.
_BUSY = re.compile(r"overloaded|internal server error|service unavailable|timeout", re.IGNORECASE)
# The fields in which a model's thoughts go back to it.
_THOUGHTS = re.compile(r"reasoning_content|thinking", re.IGNORECASE)
# A provider's error code is one word; whatever has spaces is a message and may hold text of people.
_CODE = re.compile(r"[A-Za-z][A-Za-z_.-]{1,60}")
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|gsk|xai|AIza|Bearer)[-_ ]?[A-Za-z0-9_\-.*]{8,}")
_TYPES = {"rate_limit": 429, "overloaded": 503, "server_error": 503, "unavailable": 503, "timeout": 503}
_HINTS: dict[AwayCause, str] = {
    "rate_limit": "the provider limits the rate; it is asked again later",
    "unreachable": "check model.api_base and the network",
    "credentials": "the key must be valid and allowed to use this model",
    "quota": "the account of the key is used up: add credit or raise its limit at the provider",
}
_NO_PROVIDER = re.compile(r"llm provider not provided|unmapped llm provider", re.IGNORECASE)
_UNKNOWN_CURE = 'correct model.name: LiteLLM writes it provider/model, e.g. "openai/gpt-4.1-mini"'


def classified(
    error: BaseException, *, model: str, secrets: Collection[str] = (), now: datetime | None = None
) -> ModelError:
    """Turn whatever a model call raised into one of our errors, its text free of secrets."""
    chain = list(causes(error))
    ours = _meant(chain, model=model, secrets=secrets, now=now or datetime.now(UTC))
    status, code = _status(chain), _code(chain)
    kind = f"status {status}" if status else type(chain[-1]).__name__
    ours.brief = f"{model}: {kind}, {code}" if _CODE.fullmatch(code) else f"{model}: {kind}"
    return ours


def _meant(chain: list[BaseException], *, model: str, secrets: Collection[str], now: datetime) -> ModelError:
    status = _status(chain)
    said = _said(chain)
    text = cleaned(f"{model}: {f'status {status}: ' if status else ''}{said}", secrets=secrets)
    code, words = _code(chain), " ".join(str(link)[:MAX_SEARCHED_CHARS] for link in chain)
    if status not in (401, 402, 403) and (
        _TOO_LONG.search(words)
        or code == "context_length_exceeded"
        or (status != 429 and _TOO_MANY.search(words))
    ):
        return ContextTooLong(text)
    cause = _away(chain, status, words, code)
    if cause is not None:
        hint = _HINTS[cause]
        if cause == "credentials":
            # A key in the configuration goes before the environment's: setting that one cures nothing.
            hint = f"{CONFIGURED_KEY_CURE if any(secrets) else cure(model)}: {hint}"
        return ModelAway(text, cause=cause, after_s=_retry_after(chain, now), hint=hint)
    if status == 413:
        return ContextTooLong(text)
    if status is not None and 400 <= status < 500:
        unknown = status == 404 or _NO_PROVIDER.search(words)
        return ModelRefused(text, hint=_UNKNOWN_CURE if unknown else "")
    return BadAnswer(text)


def names_thoughts(error: BaseException) -> bool:
    """Say whether a provider refused what brings thoughts back, by its words: it may have meant all else."""
    return any(_THOUGHTS.search(str(link)[:MAX_SEARCHED_CHARS]) for link in causes(error))


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
    """Read the status of an error that came inside a stream."""
    inner = body.get("error")
    fields = inner if isinstance(inner, Mapping) else body
    for value in (fields.get("code"), fields.get("status")):
        if isinstance(value, int | str) and str(value).isdigit() and 400 <= int(value) < 600:
            return int(value)
    kind = f"{fields.get('type')} {fields.get('code')}".lower()
    return next((status for word, status in _TYPES.items() if word in kind), None)


def _away(chain: list[BaseException], status: int | None, words: str, code: str) -> AwayCause | None:
    if status == 402 or code == "insufficient_quota":
        return "quota"
    if status in (None, 400, 401, 403) and _QUOTA.search(words):
        return "quota"
    if status in (401, 403) or (status in (None, 400) and _CREDENTIALS.search(words)):
        return "credentials"
    if status in (None, 400) and _UNSET.search(words) and not any(map(_sent_status, chain)):
        return "credentials"
    if status == 429:
        return "rate_limit"
    if status in (408, 425) or (status is not None and status >= 500):
        return "unreachable"
    failed = any(map(_is_transport, chain)) or _BUSY.match(str(chain[-1]))
    return "unreachable" if status is None and failed else None


def _is_transport(error: BaseException) -> bool:
    """Say whether the network failed: by the system's classes, and by the module of the HTTP clients' own."""
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError):
        return True
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    return bool(
        names & {"httpx.TransportError", "aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError"}
    )


def _said(chain: list[BaseException]) -> str:
    """Return the server's own words where there are some, else those of the innermost cause."""
    for error in reversed(chain):
        body = getattr(error, "body", None)
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        message = inner.get("message") if isinstance(inner, Mapping) else None
        if isinstance(message, str) and message:
            return message
    cause = chain[-1] if _status(chain) is None else chain[0]
    return f"{type(cause).__name__}: {cause}"


def _code(chain: list[BaseException]) -> str:
    for error in chain:
        body = getattr(error, "body", None)
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        code = inner.get("code") if isinstance(inner, Mapping) else None
        if isinstance(code, str) and code:
            return code
    return ""


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
