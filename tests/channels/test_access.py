"""Who may talk to the bot: every rule of allow-lists, pairing, groups, mentions and bots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from channels.access import Accept, AskCode, Ignore, LoopGuard, decide, is_allowed
from channels.base import Arrival
from channels.message import Sender
from channels.pairing import Approved
from channels.tables import Platform

ADA, BOB, BOT = "100", "200", "300"
NOBODY = Approved()


def direct(who: str = BOB, **more: Any) -> Arrival:
    fields: dict[str, Any] = {"id": "t:1", "chat_id": who, "text": "hello", "sender": Sender(id=who)}
    return Arrival(**(fields | more))


def in_group(who: str = BOB, **more: Any) -> Arrival:
    return direct(who, **({"chat_id": "-5:topic:1", "group": True, "group_ids": ("-5", "-6")} | more))


def verdict(arrival: Arrival, approved: Approved = NOBODY, **table: Any) -> object:
    return decide(arrival, name="telegram", table=Platform(**table), approved=approved)


def known(*people: str, groups: Iterable[str] = ()) -> Approved:
    return Approved(people=frozenset(people), groups=frozenset(groups))


IN = Accept()
CODE, GROUP_CODE = AskCode("person"), AskCode("group")
LISTED, EVERYONE = {"allow_from": (ADA,)}, {"allow_from": ("*",)}
ALL, ALL_LISTED = {"groups": "all"}, {"groups": "all", "group_allow": ("*",)}
IMPOSTOR = Sender(id=BOB, name="ada", username="ada")


@pytest.mark.parametrize("mode", ["pairing", "allowlist", "open"])
def test_who_is_listed_or_approved_may_talk_directly(mode: str) -> None:
    assert verdict(direct(ADA), direct=mode, **LISTED) == IN
    assert verdict(direct(ADA), known(ADA), direct=mode) == IN
    assert verdict(direct(ADA), direct=mode, **EVERYONE) == IN


@pytest.mark.parametrize(
    ("arrival", "approved", "table", "expected"),
    [
        # A stranger is asked for a code, ignored or let in, as the mode says.
        (direct(), NOBODY, LISTED | {"direct": "pairing"}, CODE),
        (direct(), NOBODY, LISTED | {"direct": "allowlist"}, None),
        (direct(), NOBODY, LISTED | {"direct": "open"}, IN),
        # An empty list lets in nobody, an approved group is no person nor a person a group, a name is no id.
        (direct(), NOBODY, {"direct": "allowlist"}, None),
        (direct("", sender=Sender()), NOBODY, {"direct": "allowlist"}, None),
        (direct(ADA), known(groups=[ADA]), {"direct": "allowlist"}, None),
        (in_group(), known("-5"), ALL, None),
        (direct(sender=IMPOSTOR), NOBODY, {"direct": "allowlist", "allow_from": ("ada", "@ada")}, None),
        # A stranger's command is no more than a message, an edit is nothing.
        (direct(text="/new", kind="command"), NOBODY, {}, CODE),
        (direct(kind="edit"), NOBODY, {}, None),
        (in_group(ADA, mentioned=True, kind="edit"), NOBODY, LISTED, None),
        # In a listed or approved group everyone may talk.
        *((in_group(), NOBODY, ALL | {"group_allow": (listed,)}, IN) for listed in ("-5", "-6", "*")),
        *(
            (in_group(mentioned=True), NOBODY, {"groups": "mention", "group_allow": (listed,)}, IN)
            for listed in ("-5", "-6", "*")
        ),
        (in_group(), known(groups=["-6"]), ALL, IN),
        # With "mention" nothing else is heard, not even of the operator; with "off" nothing at all.
        (in_group(ADA), NOBODY, ALL_LISTED | LISTED | {"groups": "mention"}, None),
        (in_group(ADA, mentioned=True), NOBODY, ALL_LISTED | LISTED | {"groups": "off"}, None),
        # An unlisted group is silent until an allowed person mentions the bot.
        *(
            (arrival, approved, table | {"groups": groups}, expected)
            for groups in ("mention", "all")
            for arrival, approved, table, expected in (
                (in_group(BOB, mentioned=True), known(ADA), {}, None),
                (in_group(ADA), known(ADA), {}, None),
                (in_group(ADA, mentioned=True), known(ADA), {}, GROUP_CODE),
                (in_group(ADA, mentioned=True), NOBODY, LISTED, GROUP_CODE),
            )
        ),
        (in_group(mentioned=True), NOBODY, {"direct": "open"}, None),
        # A bot is heard where its own id is listed, and gets no code for a group.
        (direct(BOT, from_bot=True), NOBODY, {"direct": "open"}, None),
        (direct(BOT, from_bot=True), NOBODY, EVERYONE, None),
        (direct(BOT, from_bot=True), known(BOT), {}, None),
        (in_group(BOT, from_bot=True, mentioned=True), NOBODY, ALL_LISTED, None),
        (direct(BOT, from_bot=True), NOBODY, {"allow_from": (BOT,)}, IN),
        (in_group(BOT, from_bot=True, mentioned=True), NOBODY, {"allow_from": (BOT,)}, None),
    ],
)
def test_who_may_talk(arrival: Arrival, approved: Approved, table: dict[str, Any], expected: object) -> None:
    found = verdict(arrival, approved, **table)

    assert isinstance(found, Ignore) if expected is None else found == expected


def test_two_bots_end_after_five_messages_until_a_person_speaks() -> None:
    guard = LoopGuard()
    bots = [direct(BOT, id=f"t:{n}", from_bot=True, chat_id="-5") for n in range(7)]

    assert [guard.lets(each) for each in bots] == [True] * 5 + [False] * 2
    assert guard.lets(direct(BOT, id="t:50", from_bot=True, chat_id="-6"))
    assert guard.lets(direct(BOB, chat_id="-5"))
    assert guard.lets(bots[6])


def test_the_same_message_again_counts_once() -> None:
    guard = LoopGuard()
    bots = [direct(BOT, id=f"t:{n}", from_bot=True) for n in range(5)]

    assert all(guard.lets(each) for _ in range(3) for each in bots)
    # Nobody answers an edit.
    assert guard.lets(direct(BOT, id="t:0:e1", from_bot=True, kind="edit"))
    assert not guard.lets(direct(BOT, id="t:5", from_bot=True))


def test_a_deletion_is_no_word_of_a_person() -> None:
    guard = LoopGuard()
    gone = direct("", id="t:0:d", sender=Sender(), kind="edit", chat_id="-5", meta={"deleted": True})
    bots = [direct(BOT, id=f"t:{n}", from_bot=True, chat_id="-5") for n in range(6)]

    heard = [guard.lets(each) and guard.lets(gone) for each in bots]

    assert heard == [True] * 5 + [False]


def test_nobody_without_an_id_is_approved() -> None:
    approved = Approved(people=frozenset({""}))

    assert not is_allowed("", table=Platform(allow_from=("",)), approved=approved)
