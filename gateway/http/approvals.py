"""``/v1/approvals``: the tool calls that wait for a person, and the word about each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response
from gateway.http.paging import PER_PAGE, Cursor, Limit, paged
from gateway.http.shape import OPERATOR, Shape, caller_of, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.pages import Place
from gateway.turns.approvals import shown_arguments
from session.approvals.answers import Answers, words_of
from session.approvals.record import Approval
from session.disk.threads import start_thread

BY = "{} (over HTTP)"

Key = Annotated[str | None, Query(max_length=MAX_KEY_CHARS, description="the chat where the call waits")]
Id = Annotated[str, Path(min_length=1, max_length=64, description="from GET /v1/approvals")]


class Decision(BaseModel):
    """The decision of a person."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["allow", "deny"]


class ApprovalOut(Shape):
    """A tool call that needs approval, and its outcome.

    ``arguments`` are as the model wrote them. ``shown`` is the same JSON for display: invisible characters
    and those that change the text direction are escaped.
    """

    id: str
    key: str
    message_id: str
    tool: str
    arguments: Any
    shown: str
    folder: str
    asked_by: str
    asked_at: str
    expires_at: str
    state: str
    decided_by: str | None
    decided_at: str | None


class ApprovalsOut(Shape):
    """Open approval requests, oldest first; ``next`` is the cursor of the next page."""

    approvals: list[ApprovalOut]
    next: str | None


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of approvals."""
    router = APIRouter(prefix="/v1/approvals")

    def answers() -> Answers:
        if chats.application.services is None:
            raise MailboxDown("the gateway is still starting")
        return chats.application.services.answers

    @router.get(
        "",
        summary="List the tool calls that wait for approval, oldest first",
        response_model=ApprovalsOut,
        **needs("read"),
    )
    async def get_all(key: Key = None, limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        files = answers().files
        waiting = await start_thread(lambda: files.waiting(key), name="approvals")
        found, following = paged(waiting, _place, limit=limit, cursor=cursor)
        return json_response({"approvals": [_out(each) for each in found], "next": following})

    @router.post(
        "/{id}", summary="Allow or deny a tool call", response_model=ApprovalOut, **needs("admin", 404, 409)
    )
    async def post(request: Request, id: Id, body: Decision) -> Response:
        name = caller_of(request.scope).name
        by = BY.format("the operator" if name in ("", OPERATOR) else name)
        done = await answers().decide(body.decision, id, by=by)
        if done.refusal == "unknown" or done.approval is None:
            raise HttpError(404, f"there is no approval {id}", hint="GET /v1/approvals lists them")
        if done.refusal is not None:
            raise HttpError(409, words_of(done), hint="GET /v1/approvals lists the calls that still wait")
        return json_response(_out(done.approval))

    return router


def _out(approval: Approval) -> dict[str, Any]:
    return approval.as_dict() | {"shown": shown_arguments(approval.call.arguments)}


def _place(approval: Approval) -> Place:
    return round(approval.asked_at.timestamp() * 1_000_000), approval.id
