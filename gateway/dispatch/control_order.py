"""What ``chat.control`` carries to every daemon: stop a turn, say how a chat stands, watch some slots."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from channels.errors import Unreadable
from channels.message import Inbound, read_inbound
from session.transcript.key import SLOTS

# How the ids of stops begin that no message asked for.
OWN: Final = "stop:"


class _Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    v: Literal[1] = 1
    id: str = ""

    def to_bytes(self) -> bytes:
        """Encode as JSON; what is not asked for is left out."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)


def _letter(value: object) -> Inbound:
    """Read the message as its queue does, which forgives optional fields."""
    if isinstance(value, Inbound):
        return value
    try:
        return read_inbound(orjson.dumps(value))[0]
    except orjson.JSONEncodeError:
        # JSON is read to a greater depth than it is written.
        raise Unreadable("the control message is nested too deeply") from None


def _perhaps(value: object) -> Inbound | None:
    """Read a message; None where it cannot be read: the order counts without."""
    try:
        return None if value is None else _letter(value)
    except Unreadable:
        return None


class StopOrder(_Order):
    """Stop the turn of ``key``, wherever it runs; ``id`` is that of the message that asks for it.

    Args:
        only: stop no turn but that of the message with this id. A daemon that does not know it stops any.
        letter: the message that asks, as its queue has it; it is answered as it says.
    """

    do: Literal["stop"] = "stop"
    key: str
    only: str | None = None
    letter: Annotated[Inbound | None, BeforeValidator(_perhaps)] = None


class StatusOrder(_Order):
    """Answer a ``/status``, whose message waits behind others, where the lane of its chat is."""

    do: Literal["status"] = "status"
    key: str = ""
    letter: Annotated[Inbound, BeforeValidator(_letter)]


class WatchOrder(_Order):
    """Tell all events of these slots for ``for_s`` seconds; at once the text so far of the key ``draft``.

    Args:
        channel: of this channel's keys alone.
        reads: False: the text of an answer is not wanted before its end.
    """

    do: Literal["watch"] = "watch"
    slots: Literal["all"] | list[Annotated[int, Field(ge=0, lt=SLOTS)]]
    for_s: float = Field(allow_inf_nan=False)
    draft: str | None = None
    channel: str | None = None
    reads: bool | None = None


ControlOrder = StopOrder | StatusOrder | WatchOrder
_KINDS: Final[dict[str, type[ControlOrder]]] = {
    "stop": StopOrder,
    "status": StatusOrder,
    "watch": WatchOrder,
}


def read_order(body: bytes) -> ControlOrder | None:
    """Read what was told over control; None if a newer daemon asks for what this one does not know.

    Raises:
        Unreadable: it is no order.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Unreadable("not JSON in UTF-8") from None
    if not isinstance(fields, dict) or "do" not in fields:
        raise Unreadable("not an order")
    kind = _KINDS.get(str(fields["do"]))
    if kind is None:
        return None
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise Unreadable(f"not an order to {fields['do']}: {error.error_count()} faults") from None
