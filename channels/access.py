"""Decides who may talk to the bot, and who administers a group; by numeric ids alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import durable
from channels.base import Arrival
from channels.pairing import Approved
from channels.tables import Platform

EVERYONE: Final = "*"
# Commands that not everyone may give in a group.
RESTRICTED: Final = frozenset({"new", "resume", "undo", "compact", "forget", "agent"})
# Of these nobody is kept from looking: without a word behind them they change nothing.
LOOKS: Final = frozenset({"agent"})
# The reason of a message in a group that the bot answers in, but that does not address it.
NOT_MENTIONED: Final = "not mentioned"
_MAX_CHATS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Accept:
    """The message is for the bot."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """The message is dismissed in silence; ``reason`` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskCode:
    """Nothing is taken; the chat may be told a code by which the operator lets it in."""

    who: Literal["person", "group"]


Verdict = Accept | Ignore | AskCode


def decide(arrival: Arrival, *, name: str, table: Platform, approved: Approved) -> Verdict:
    """Say what becomes of a message of channel ``name``."""
    if arrival.from_bot and arrival.sender.id not in table.allow_from:
        return Ignore("bot")
    if arrival.group:
        return _in_group(arrival, table=table, approved=approved)
    if table.direct == "open" or is_allowed(arrival.sender.id, table=table, approved=approved):
        return Accept()
    if table.direct == "pairing" and arrival.kind != "edit" and arrival.sender.id:
        return AskCode("person")
    return Ignore(f"not allowed on {name}")


def _in_group(arrival: Arrival, *, table: Platform, approved: Approved) -> Verdict:
    if table.groups == "off":
        return Ignore("groups are off")
    if group_allowed(arrival.group_ids, table=table, approved=approved):
        if table.groups == "mention" and not arrival.mentioned:
            return Ignore(NOT_MENTIONED)
        return Accept()
    if (
        arrival.mentioned
        and arrival.kind != "edit"
        and arrival.group_ids
        and not arrival.from_bot
        and is_allowed(arrival.sender.id, table=table, approved=approved)
    ):
        return AskCode("group")
    return Ignore("group not allowed")


def is_allowed(person_id: str, *, table: Platform, approved: Approved) -> bool:
    """Say whether a person is on the allow-list or was approved."""
    if not person_id:
        return EVERYONE in table.allow_from
    return EVERYONE in table.allow_from or person_id in table.allow_from or person_id in approved.people


def group_allowed(group_ids: tuple[str, ...], *, table: Platform, approved: Approved) -> bool:
    """Say whether one of the ids of a group is listed or was approved."""
    listed = EVERYONE in table.group_allow
    return listed or any(each in table.group_allow or each in approved.groups for each in group_ids)


class LoopGuard:
    """Lets at most ``limit`` messages of bots into a chat between two messages of people.

    The same message again counts once; of the chats that were quiet for longest the count is forgotten.
    """

    def __init__(self, limit: int = 5) -> None:
        self._limit = limit
        self._heard: durable.BoundedDict[str, set[str]] = durable.BoundedDict(_MAX_CHATS)

    def lets(self, arrival: Arrival) -> bool:
        """Count a message; False where it is one message of bots too many. An edit is answered by nobody."""
        if arrival.kind == "edit":
            # Nor does it say that a person is there: of a deletion nobody knows whose it is, and many bots
            # delete what they show while they think.
            return True
        if not arrival.from_bot:
            self._heard.pop(arrival.chat_id, None)
            return True
        heard = self._heard.use(arrival.chat_id)
        if heard is None:
            heard = self._heard[arrival.chat_id] = set()
        if arrival.id not in heard and len(heard) >= self._limit:
            return False
        heard.add(arrival.id)
        return True


_FOR_S: Final = 300.0
_MAX_KNOWN: Final = 1_000


class KnownAdmins:
    """The platform's newest answers of the last five minutes, in memory.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: durable.BoundedDict[tuple[str, str], tuple[float, bool]] = durable.BoundedDict(
            _MAX_KNOWN
        )

    def known(self, chat: str, person: str) -> bool | None:
        """Say whether a person administers a chat; None where the platform has to be asked."""
        until, is_admin = self._known.get((chat, person), (0.0, False))
        return is_admin if self._clock() < until else None

    def note(self, chat: str, person: str, is_admin: bool) -> None:
        """Remember what the platform answered."""
        self._known[chat, person] = (self._clock() + _FOR_S, is_admin)
