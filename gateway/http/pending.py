"""``/v1/approvals``, ``/v1/pairing`` and ``/v1/parked``: what waits for a decision of a person."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from channels.pairing import Pairing
from gateway.dispatch.approvals import shown_arguments
from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response
from gateway.http.openapi import OPERATOR, PER_PAGE, Body, Cursor, Limit, Shape, caller_of, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.pages import Place, digest, page
from gateway.service.parked import ParkedLetters
from session.approvals.answers import Answers, words_of
from session.approvals.record import Approval
from session.disk.threads import start_thread

BY = "{} (over HTTP)"

Key = Annotated[str | None, Query(max_length=MAX_KEY_CHARS, description="the chat where the call waits")]
Id = Annotated[str, Path(min_length=1, max_length=64, description="from GET /v1/approvals")]


class Decision(Body):
    """The decision of a person."""

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


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of approvals, access requests and parked messages."""
    _add_approvals(router, chats)
    _add_pairing(router, chats)
    _add_parked(router, chats)


def _add_approvals(router: APIRouter, chats: ChatService) -> None:

    def answers() -> Answers:
        if chats.application.services is None:
            raise MailboxDown("the gateway is still starting")
        return chats.application.services.answers

    @router.get(
        "/v1/approvals",
        summary="List the tool calls that wait for approval, oldest first",
        **needs("read", ApprovalsOut),
    )
    async def get_all(key: Key = None, limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        files = answers().files
        waiting = await start_thread(lambda: files.waiting(key), name="approvals")
        found, following = page(waiting, _approval_place, limit=limit, cursor=cursor)
        return json_response({"approvals": [_approval_out(each) for each in found], "next": following})

    @router.post(
        "/v1/approvals/{id}", summary="Allow or deny a tool call", **needs("admin", ApprovalOut, 404, 409)
    )
    async def post(request: Request, id: Id, body: Decision) -> Response:
        name = caller_of(request.scope).name
        by = BY.format("the operator" if name in ("", OPERATOR) else name)
        done = await answers().decide(body.decision, id, by=by)
        if done.refusal == "unknown" or done.approval is None:
            raise HttpError(404, f"there is no approval {id}", hint="GET /v1/approvals lists them")
        if done.refusal is not None:
            raise HttpError(409, words_of(done), hint="GET /v1/approvals lists the calls that still wait")
        return json_response(_approval_out(done.approval))


def _approval_out(approval: Approval) -> dict[str, Any]:
    return approval.as_dict() | {"shown": shown_arguments(approval.call.arguments)}


def _approval_place(approval: Approval) -> Place:
    return round(approval.asked_at.timestamp() * 1_000_000), approval.id


T = TypeVar("T")


class PairingRow(Shape):
    """A request for access, or an approval."""

    code: str | None
    who: str
    name: str
    channel: str
    state: Literal["pending", "approved"]
    at: str


class PairingOut(Shape):
    """Requests and approvals, oldest first; ``next`` is the cursor of the next page."""

    pairing: list[PairingRow]
    next: str | None


class RevokedOut(Shape):
    """The revoked approvals."""

    revoked: list[PairingRow]


def _add_pairing(router: APIRouter, chats: ChatService) -> None:

    def pairing() -> Pairing:
        return Pairing(chats.application.settings.state)

    @router.get("/v1/pairing", summary="List access requests and approvals", **needs("admin", PairingOut))
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        rows = await asyncio.to_thread(pairing().rows)
        found, following = page(rows, _pairing_place, limit=limit, cursor=cursor)
        return json_response({"pairing": found, "next": following})

    @router.post(
        "/v1/pairing/{code}/approve",
        summary="Approve the person or group that got a code",
        **needs("admin", PairingRow, 404),
    )
    async def post_approve(code: str) -> Response:
        entry = await asyncio.to_thread(pairing().approve, code)
        return json_response(entry.as_row())

    @router.delete(
        "/v1/pairing/{who:path}",
        summary="Revoke access and codes of telegram:123, or of 123 on all channels",
        **needs("admin", RevokedOut, 404),
    )
    async def delete(who: str) -> Response:
        gone = await asyncio.to_thread(pairing().revoke, who)
        return json_response({"revoked": [entry.as_row() for entry in gone]})


def _pairing_place(row: Mapping[str, Any]) -> Place:
    return str(row["at"]), digest(row["channel"], row["who"], row["code"])


ParkedKey = Annotated[str | None, Query(description="its chat, if several chats have a message with this id")]

Files = Annotated[bool, Query(description="include the files in media/ that each refers to")]


class ParkedRow(Shape):
    """A parked message; ``key`` is null if it is unreadable."""

    id: str
    box: Literal["inbound", "outbound"]
    key: str | None
    reason: str
    from_: str = Field(alias="from")
    attempts: int
    parked_at: str
    files: list[str] = Field(
        default=[], description="with ?files=true: the files in media/ that it refers to"
    )


class ParkedWhole(ParkedRow):
    """A parked letter with its body: as text, or in base64 where it is no UTF-8."""

    body: str | None = None
    body_base64: str | None = None


class ParkedOut(Shape):
    """Parked messages, oldest first; ``count`` is their total, ``next`` the cursor of the next page."""

    parked: list[ParkedRow]
    count: int
    next: str | None


def _add_parked(router: APIRouter, chats: ChatService) -> None:

    def letters() -> ParkedLetters:
        return ParkedLetters(chats.application.mailbox, chats.store, letters=chats.application.letters)

    @router.get("/v1/parked", summary="List parked messages, oldest first", **needs("read", ParkedOut))
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None, files: Files = False) -> Response:
        rows = await letters().parked(files=files)
        found, following = page(rows, _parked_place, limit=limit, cursor=cursor)
        return json_response({"parked": found, "count": len(rows), "next": following})

    @router.get(
        "/v1/parked/{message_id:path}",
        summary="Show a parked message in full",
        **needs("read", ParkedWhole, 404, 409),
    )
    async def get_one(message_id: str, key: ParkedKey = None) -> Response:
        return json_response(await letters().parked_one(message_id, key))

    @router.post(
        "/v1/parked/{message_id:path}/retry",
        summary="Put a parked message back at the end of its queue",
        **needs("write", ParkedRow, 404, 409),
    )
    async def post_retry(message_id: str, key: ParkedKey = None) -> Response:
        return json_response(await letters().retry(message_id, key))

    @router.delete(
        "/v1/parked/{message_id:path}",
        summary="Delete a parked message for good",
        **needs("write", ParkedRow, 404, 409),
    )
    async def delete(message_id: str, key: ParkedKey = None) -> Response:
        return json_response(await letters().drop(message_id, key))


def _parked_place(row: Mapping[str, Any]) -> Place:
    told = (row["box"], row["key"], row["id"], row["reason"])
    return round(datetime.fromisoformat(row["parked_at"]).timestamp() * 1_000_000), digest(*told)
