"""``/v1/trace`` and ``/v1/usage``: the life of one message, and what models cost."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

import durable
from gateway.http.errors import HttpError, json_response
from gateway.http.shape import Metrics, Open, Shape, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.trace import NotTraced, TracedTwice, Tracer, joined
from session.models.usage_rows import KEPT_DAYS, report
from session.store.state import StoreState

# What goes out for a message has a longer id than the message.
MAX_ID_CHARS = 512

Key = Annotated[str | None, Query(max_length=MAX_KEY_CHARS, description="key of the message's chat")]
Id = Annotated[str, Path(min_length=1, max_length=MAX_ID_CHARS, description="from the log or the transcript")]
Days = Annotated[int, Query(ge=1, le=KEPT_DAYS, description="number of days, including today (UTC)")]


class StepOut(Open):
    """One step, with the figures and names that belong to it; ``at`` is null where nothing on disk tells."""

    at: str | None
    step: str
    words: str
    source: str


class TraceOut(Shape):
    """What happened to a message: its state, its steps, and what is unknown."""

    id: str
    key: str | None
    state: str
    words: str
    steps: list[StepOut]
    unknown: list[str]


class SumsOut(Metrics):
    """What turns and other calls used."""

    calls: int


class DayOut(SumsOut):
    """Usage of a day (UTC)."""

    day: str


class ChatOut(SumsOut):
    """Usage of a chat."""

    key: str | None


class PersonOut(SumsOut):
    """Usage of a person."""

    person: str | None


class ModelOut(SumsOut):
    """Usage of a model; null for entries without a model."""

    model: str | None


class UsageOut(Shape):
    """Days, oldest first; all others, most expensive first."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    first: str = Field(alias="from")
    to: str
    total: SumsOut
    days: list[DayOut]
    chats: list[ChatOut]
    people: list[PersonOut]
    models: list[ModelOut]


def routes(chats: ChatService) -> APIRouter:
    """Build the routes that tell what became of a message, and what was spent."""
    router = APIRouter()

    @router.get(
        "/v1/trace/{message_id:path}",
        summary="Show what happened to one message, step by step",
        response_model=TraceOut,
        **needs("read", 404, 409),
    )
    async def get_trace(message_id: Id, key: Key = None) -> Response:
        application = chats.application
        lanes = application.worker.lanes if application.worker is not None else None
        tracer = Tracer(application.settings, mailbox=application.mailbox, lanes=lanes)
        found: list[dict[str, Any]] = []
        fault: NotTraced | None = None
        try:
            found.append(await tracer.trace(message_id, key))
        except NotTraced as error:
            fault = error
        except TracedTwice as error:
            raise HttpError(409, str(error), hint="choose one with ?key=") from None
        found += [each for each in await application.ask_workers("trace", id=message_id, key=key) if each]
        if not found:
            assert fault is not None
            raise HttpError(404, str(fault), hint=fault.hint) from None
        return json_response(joined(found))

    @router.get(
        "/v1/usage",
        summary="Tokens and cost by day, chat, person and model",
        response_model=UsageOut,
        **needs("read"),
    )
    async def get_usage(days: Days = 30, key: Key = None) -> Response:
        application = chats.application
        async with aclosing(StoreState(application.settings.state)) as state:
            return json_response(await report(state, today=durable.now().date(), days=days, key=key or ""))

    return router
