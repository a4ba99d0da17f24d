"""What routes say of themselves in the OpenAPI document: shapes, rights, pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from fastapi import Depends, FastAPI, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.requests import HTTPConnection
from starlette.types import Scope

from gateway.http.errors import HttpError
from gateway.service.pages import MAX_CURSOR_CHARS
from gateway.service.tokens import RIGHTS, Caller, Right

CALLER: Final = "chat_gateway.caller"
# The name of ``http.token``, which no other token can have.
OPERATOR: Final = "http.token"
STILL: Final = "chat_gateway.still"
# The page, its programs and everybody on this machine, where no token is set.
EVERYBODY: Final = Caller("", "admin")
_ERRORS: Final = {
    400: "The request is not valid; `error` names the field",
    401: "The token is missing or wrong",
    403: "The token lacks the right, or Host or Origin is not allowed",
    404: "Not found",
    405: "Not allowed for this resource",
    408: "The request body was not received in time",
    409: "It conflicts with the current state",
    413: "The body is too large",
    422: "The message was accepted, but got no answer",
    429: "Too many requests or wrong tokens: try again after `Retry-After` seconds",
    500: "Internal error; the log has the details",
    503: "A part of the gateway does not answer: try again after `Retry-After` seconds",
}
# Any request may be answered so, whatever it asks for.
_ALWAYS: Final = (400, 401, 403, 408, 413, 429, 500, 503)


class Shape(BaseModel):
    """An answer's body, with these fields and no other."""

    model_config = ConfigDict(extra="forbid")


class Body(BaseModel):
    """A request's body, with these fields and no other; its texts can be written as UTF-8."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="after")
    def _is_text(self) -> Self:
        if any(has_surrogate(value) for _, value in self if isinstance(value, str)):
            raise ValueError("a text contains half of a surrogate pair")
        return self


class Open(BaseModel):
    """A part of an answer to which others may add fields."""

    model_config = ConfigDict(extra="allow")


class Metrics(Shape):
    """Usage of turns: some of the prompt's tokens were read from a cache or written to one.

    ``cost_usd`` excludes ``unpriced_tokens``, whose price is unknown; it is null if no price is known.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_written_tokens: int
    unpriced_tokens: int
    cost_usd: float | None
    turns: int


class ErrorOut(Shape):
    """The problem, and what to do about it (may be empty)."""

    error: str
    hint: str


class OpenAIError(Open):
    """What is wrong, in OpenAI's words, and what would work."""

    message: str
    type: str
    param: Any
    code: str | None
    hint: str


class OpenAIErrorOut(Shape):
    """An error in the format of OpenAI's API."""

    error: OpenAIError


def needs(
    right: Right | None,
    answer: Any = None,
    *errors: int,
    form: type[BaseModel] = ErrorOut,
    **answers: type[BaseModel] | Any,
) -> dict[str, Any]:
    """Say for the decorator of a route who may ask and how it may answer.

    Args:
        right: what the token must carry; None: no token is needed.
        answer: the shape of its plain answer; None: it is no JSON.
        errors: statuses of errors of its own, such as 404 and 409.
        form: the shape of all its errors.
        answers: further answers by status, as ``_202=Accepted``.
    """
    all_errors = (*errors, *(_ALWAYS if form is not ErrorOut else ()))
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": form, "description": _ERRORS[status]} for status in all_errors
    }
    responses |= {int(status.lstrip("_")): {"model": model} for status, model in answers.items()}
    said = [{"bearer": [right]}, {"cookie": [right]}] if right is not None else []
    checks = [Depends(_held(right))] if right is not None else []
    return {
        "response_model": answer,
        "dependencies": checks,
        "responses": responses,
        "openapi_extra": {"security": said},
    }


def caller_of(scope: Scope) -> Caller:
    """Return who asks, as the gate found out."""
    found = scope.get(CALLER)
    return found if isinstance(found, Caller) else EVERYBODY


def still_let_in(scope: Scope) -> bool:
    """Say whether a stream may go on: its token was not revoked since it began."""
    still = scope.get(STILL)
    return still is None or bool(still())


def has_surrogate(text: str) -> bool:
    """Say whether a text cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_right(scope: Scope, right: Right) -> None:
    """Refuse whoever's token does not reach so far.

    Raises:
        HttpError: 403.
    """
    caller = caller_of(scope)
    if not caller.may(right):
        raise HttpError(
            403,
            f"the token {caller.name} has the right {caller.right}; this needs {right}",
            hint=f"use a token with the right {right}",
        )


def _held(right: Right) -> Any:
    async def check(connection: HTTPConnection) -> None:
        check_right(connection.scope, right)

    return check


def document(app: FastAPI) -> dict[str, Any]:
    """Describe all routes of an application, as ``/openapi.json`` shows them."""
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=_ABOUT,
        routes=app.routes,
    )
    parts = found.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.setdefault("ErrorOut", ErrorOut.model_json_schema())
    parts["responses"] = {f"Error{status}": _error(status) for status in _ERRORS}
    parts["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": _RIGHTS_SAID},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "chat_gateway", "description": _COOKIE_SAID},
    }
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"] = dict(sorted(_responses(operation["responses"]).items()))
    return found


def _responses(own: Mapping[str, Any]) -> dict[str, Any]:
    """Add the errors that any request may meet, and leave out the status that ours never have."""
    found: dict[str, Any] = {}
    for status, said in own.items():
        schema = said.get("content", {}).get("application/json", {}).get("schema", {})
        if schema.get("$ref", "").endswith("/HTTPValidationError"):
            continue
        shared = schema.get("$ref", "").endswith("/ErrorOut")
        found[status] = {"$ref": f"#/components/responses/Error{status}"} if shared else said
    for always in _ALWAYS:
        found.setdefault(str(always), {"$ref": f"#/components/responses/Error{always}"})
    return found


def _error(status: int) -> dict[str, Any]:
    return {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}},
    }


_COOKIE_SAID = "Set by POST /v1/login. With a port in the address, the name ends with it: chat_gateway_8080."
_RIGHTS_SAID = (
    f"`http.token` has all rights, a named token one of {', '.join(RIGHTS)}, including those before it."
)
_ABOUT = (
    "The API of one gateway. Every error is an object with `error` and `hint`. Each answer "
    "has an `X-Request-Id`, taken from the request or generated; the log contains it, too."
)


MAX_LIMIT = 1000
PER_PAGE = 100
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS, description="`next` of the previous page")]
