"""Every failure of a request as JSON ``{"error", "hint"}``, with the status that fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from channels.cron.jobs import BadJob
from channels.cron.jobs_file import NoJob
from channels.cron.schedule import BadSchedule
from channels.errors import ChannelError
from channels.pairing import NobodyThere, NoSuchCode
from durable import plain_value
from gateway.errors import GatewayError, MailboxDown
from gateway.service.client_message import NoAddress, TooManyChannels
from gateway.service.pages import BadCursor
from gateway.service.parked import NotParked, ParkedTwice
from gateway.service.sessions import Unknown
from gateway.service.trace import NotTraced, TracedTwice
from session.errors import NoAgent, NotNow, OtherAgent, SessionError
from session.kept.subject import Nobody

log = structlog.get_logger("http")

RETRY_AFTER_S = 5
# Clients of OpenAI's API read errors of these routes in its form.
OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/models")
_TYPES: Final = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    404: ("invalid_request_error", "model_not_found"),
    409: ("conflict_error", "idempotency_conflict"),
    422: ("no_answer_error", "no_answer"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


class HttpError(Exception):
    """A request that cannot be answered as asked; ``hint`` says what would work."""

    def __init__(
        self, status: int, error: str, *, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.hint = hint
        self.headers = dict(headers or {})


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Encode ``content`` as the body of a response."""
    return Response(encoded(content), status, headers=dict(headers or {}), media_type="application/json")


def encoded(content: Any) -> bytes:
    """Write JSON that every reader takes, whatever a file, a model or another program put in it."""
    try:
        return orjson.dumps(content)
    # Half of a surrogate pair, a number of over 64 bits, 254 levels: one such row must not hide all others.
    except TypeError:
        return json.dumps(plain_value(content), ensure_ascii=False).encode()


def error_body(status: int, error: str, hint: str) -> dict[str, Any]:
    """Say what is wrong in the form of OpenAI's API; the hint stands beside its fields."""
    fallback = ("server_error", "server_error") if status >= 500 else ("invalid_request_error", None)
    kind, code = _TYPES.get(status, fallback)
    message = f"{error} (try: {hint})" if hint else error
    return {"error": {"message": message, "type": kind, "param": None, "code": code, "hint": hint}}


def error_response(
    scope: Scope, status: int, error: str, hint: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """Answer a request with an error in the form that its route has; a 503 says when to come again."""
    path = scope["path"]
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    of_openai = path in OPENAI_PATHS or path.startswith("/v1/models/")
    body = error_body(status, error, hint) if of_openai else {"error": error, "hint": hint}
    return json_response(body, status, retry | dict(headers or {}))


def unavailable(error: str, hint: str) -> HttpError:
    """Build a 503."""
    return HttpError(503, error, hint=hint)


class _Answer(NamedTuple):
    """How an error is answered: without a hint by its own, ``text`` with its words in it."""

    status: int
    hint: str = ""
    text: str = "{}"


_ANSWERS: Final[Mapping[type[Exception], _Answer]] = {
    BadCursor: _Answer(400, "start without one", "the cursor is not valid"),
    NoAddress: _Answer(400),
    NoAgent: _Answer(400),
    Nobody: _Answer(404),
    NoJob: _Answer(404, "GET /v1/cron lists them"),
    NoSuchCode: _Answer(404, "GET /v1/pairing lists them"),
    NobodyThere: _Answer(404, "GET /v1/pairing lists them"),
    NotParked: _Answer(404, "GET /v1/parked lists them"),
    NotTraced: _Answer(404),
    Unknown: _Answer(404, "GET /v1/sessions lists them", "there is no session {}"),
    BadJob: _Answer(409),
    BadSchedule: _Answer(409),
    OtherAgent: _Answer(409),
    ParkedTwice: _Answer(409, "choose one with ?key="),
    TracedTwice: _Answer(409, "choose one with ?key="),
    ChannelError: _Answer(503),
    NotNow: _Answer(503),
}


def add_error_handlers(app: FastAPI) -> None:
    """Make ``app`` answer every exception in our form; what nobody foresaw is logged and answered 500."""
    app.add_exception_handler(HttpError, _ours)
    for kind in _ANSWERS:
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(GatewayError, _gateway)
    app.add_exception_handler(SessionError, _session)
    app.add_exception_handler(OSError, _disk)
    app.add_exception_handler(Exception, _unforeseen)


async def _known(request: Request, error: Exception) -> Response:
    answer = next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)
    hint = answer.hint or getattr(error, "hint", "") or ("try again" if answer.status == 503 else "")
    return error_response(request.scope, answer.status, answer.text.format(error), hint)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error_response(request.scope, error.status, error.error, error.hint, error.headers)


async def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    hint = "GET /openapi.json lists all routes" if error.status_code in (404, 405) else ""
    words = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not allowed here"}
    text = words.get(error.status_code, str(error.detail))
    return error_response(request.scope, error.status_code, text, hint, error.headers)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    if (fault := _body_fault(request, errors)) is not None:
        return error_response(request.scope, 400, *fault)
    faults = []
    for each in errors[:5]:
        place = ".".join(str(part) for part in each["loc"] if part not in ("body", "query", "path"))
        message = str(each["msg"]).removeprefix("Value error, ")
        faults.append(f"{place}: {message}" if place else message)
    return error_response(request.scope, 400, "; ".join(faults), "GET /openapi.json describes every route")


def _body_fault(request: Request, errors: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Say what a body as a whole is wrong in, and the cure; None where single fields are."""
    for fault in errors:
        place = tuple(fault["loc"])
        if fault["type"] == "json_invalid":
            why = (fault.get("ctx") or {}).get("error", "")
            return f"the body is not JSON: {why} (character {place[-1]})", 'send an object: {"name": "value"}'
        if place != ("body",):
            continue
        if fault["type"] == "missing":
            return "the body is missing", "send a JSON object, with Content-Type: application/json"
        if fault["type"] == "model_attributes_type":
            sent = request.headers.get("Content-Type", "")
            # The body arrives as bytes where its Content-Type kept FastAPI from reading it as JSON.
            if isinstance(fault.get("input"), bytes):
                named = f"its Content-Type is {sent[:80]}" if sent else "it has no Content-Type"
                return f"the body is not declared as JSON: {named}", "send Content-Type: application/json"
            return "the body is JSON, but not an object", 'send an object: {"name": "value"}'
    return None


async def _gateway(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    log.warning("request.failed", error=str(error), hint=error.hint)
    if isinstance(error, MailboxDown):
        return error_response(request.scope, 503, "the queue does not answer", "try again")
    status = 429 if isinstance(error, TooManyChannels) else 500
    return error_response(request.scope, status, str(error), error.hint)


async def _session(request: Request, error: Exception) -> Response:
    assert isinstance(error, SessionError)
    log.warning("request.failed", error=str(error), hint=error.hint)
    return error_response(request.scope, 503, f"it could not be stored: {error}", error.hint or "try again")


async def _disk(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    # A deadline and a connection are no disk, though Python counts them among its errors.
    if error.strerror is None or isinstance(error, ConnectionError | TimeoutError):
        return await _unforeseen(request, error)
    log.error("request.crashed", method=request.method, route=request.url.path, exc_info=error)
    return error_response(request.scope, 503, f"the disk reported an error: {error.strerror}", "try again")


async def _unforeseen(request: Request, error: Exception) -> Response:
    log.error("request.crashed", method=request.method, route=request.url.path, exc_info=error)
    return error_response(request.scope, 500, "internal error", "see the log of the gateway")
