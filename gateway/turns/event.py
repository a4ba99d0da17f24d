"""One Event, as ``chat.events`` carries it and clients see it, and which ones end the wait for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticSerializationError

from durable import whole_text

if TYPE_CHECKING:
    from session.transcript.journal import Told

TOLD: Final = ("reply", "notice")
# Notices after which the answer still comes.
FILES: Final = "files"
WAITING: Final = frozenset({"agent", "approval", "busy", FILES, "idle", "model_away", "storage"})
_INT64: Final = 2**63


class Event(BaseModel):
    """What somebody who looks on sees; ``seq`` counts the replies and notices of a key.

    Of a kind that a newer daemon tells, clients get what there is.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    v: Literal[1] = 1
    id: str = ""
    key: str
    in_reply_to: str | None = None
    kind: str
    seq: int = Field(ge=-_INT64, lt=_INT64)
    text: str = ""
    # The platform's id of the message that is answered, of a turn that starts.
    platform_id: str = Field(default="", exclude_if=lambda platform_id: not platform_id)

    @field_validator("id", "text", "platform_id", mode="before")
    @classmethod
    def _text_or_nothing(cls, value: object) -> object:
        return value if isinstance(value, str) else ""

    @field_validator("in_reply_to", mode="before")
    @classmethod
    def _id_or_none(cls, value: object) -> object:
        return value if isinstance(value, str) else None

    @property
    def told(self) -> bool:
        """Whether it is a reply or a notice, which may be asked for again."""
        return self.kind in TOLD

    @property
    def reason(self) -> str:
        """Why a notice was sent; empty of anything else."""
        return self.id.rpartition("#notice.")[2] if self.kind == "notice" and "#notice." in self.id else ""

    @property
    def ends(self) -> bool:
        """Whether nothing else comes for the message that it answers."""
        return self.kind == "reply" or (
            self.kind == "notice" and self.reason.partition(".")[0] not in WAITING
        )

    def to_bytes(self) -> bytes:
        """Encode as one line of JSON, with its text made one that UTF-8 has."""
        try:
            return self.__pydantic_serializer__.to_json(self)
        except PydanticSerializationError:
            return self.__pydantic_serializer__.to_json(
                self.model_copy(update={"text": whole_text(self.text)})
            )


def read_event(body: bytes | str) -> Event | None:
    """Read an event's body; None if it is not one. An optional field of a wrong type counts as left out."""
    try:
        return Event.model_validate(orjson.loads(body))
    except (orjson.JSONDecodeError, ValidationError):
        return None


def of_told(key: str, told: Told) -> Event:
    """Build the event of a reply or notice that is on record."""
    suffix = "reply" if told.kind == "reply" else f"notice.{told.reason or 'ended'}"
    return Event(
        id=f"{told.id}#{suffix}",
        key=key,
        in_reply_to=told.id,
        kind=told.kind,
        seq=told.seq,
        text=told.text,
    )
