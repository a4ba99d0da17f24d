"""Who may talk to the bot: every rule of allow-lists, pairing, groups, mentions and bots."""

from __future__ import annotations

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


def ignored(given: object) -> bool:
    return isinstance(given, Ignore)


@pytest.mark.parametrize("mode", ["pairing", "allowlist", "open"])
def test_who_is_listed_or_approved_may_talk_directly(mode: str) -> None:
    assert verdict(direct(ADA), direct=mode, allow_from=(ADA,)) == Accept()
    assert verdict(direct(ADA), Approved(people=frozenset({ADA})), direct=mode) == Accept()
    assert verdict(direct(ADA), direct=mode, allow_from=("*",)) == Accept()


def test_a_stranger_is_asked_for_a_code_ignored_or_let_in_as_the_mode_says() -> None:
    assert verdict(direct(), direct="pairing", allow_from=(ADA,)) == AskCode("person")
    assert ignored(verdict(direct(), direct="allowlist", allow_from=(ADA,)))
    assert verdict(direct(), direct="open", allow_from=(ADA,)) == Accept()


def test_an_empty_allow_list_lets_in_nobody() -> None:
    assert ignored(verdict(direct(), direct="allowlist"))
    assert ignored(verdict(direct("", sender=Sender()), direct="allowlist"))


def test_an_approved_group_is_no_approved_person() -> None:
    assert ignored(verdict(direct(ADA), Approved(groups=frozenset({ADA})), direct="allowlist"))
    assert ignored(verdict(in_group(), Approved(people=frozenset({"-5"})), groups="all"))


def test_a_user_name_that_is_listed_lets_nobody_in() -> None:
    impostor = Sender(id=BOB, name="ada", username="ada")

    assert ignored(verdict(direct(sender=impostor), direct="allowlist", allow_from=("ada", "@ada")))


def test_a_command_of_a_stranger_is_no_more_than_a_message_and_an_edit_is_nothing() -> None:
    assert verdict(direct(text="/new", kind="command")) == AskCode("person")
    assert ignored(verdict(direct(kind="edit")))
    assert ignored(verdict(in_group(ADA, mentioned=True, kind="edit"), allow_from=(ADA,)))


@pytest.mark.parametrize("listed", [("-5",), ("-6",), ("*",)])
def test_in_a_listed_group_everyone_may_talk(listed: tuple[str, ...]) -> None:
    assert verdict(in_group(), groups="all", group_allow=listed) == Accept()
    assert verdict(in_group(mentioned=True), groups="mention", group_allow=listed) == Accept()


def test_in_an_approved_group_everyone_may_talk() -> None:
    assert verdict(in_group(), Approved(groups=frozenset({"-6"})), groups="all") == Accept()


def test_with_mention_nothing_else_is_heard_in_a_group_not_even_of_the_operator() -> None:
    assert ignored(verdict(in_group(ADA), groups="mention", group_allow=("*",), allow_from=(ADA,)))


def test_with_off_no_group_is_heard() -> None:
    arrival = in_group(ADA, mentioned=True)

    assert ignored(verdict(arrival, groups="off", group_allow=("*",), allow_from=(ADA,)))


@pytest.mark.parametrize("groups", ["mention", "all"])
def test_an_unlisted_group_is_silent_until_an_allowed_person_mentions_the_bot(groups: str) -> None:
    approved = Approved(people=frozenset({ADA}))

    assert ignored(verdict(in_group(BOB, mentioned=True), approved, groups=groups))
    assert ignored(verdict(in_group(ADA), approved, groups=groups))
    assert verdict(in_group(ADA, mentioned=True), approved, groups=groups) == AskCode("group")
    assert verdict(in_group(ADA, mentioned=True), groups=groups, allow_from=(ADA,)) == AskCode("group")


def test_an_open_direct_chat_opens_no_group() -> None:
    assert ignored(verdict(in_group(mentioned=True), direct="open"))


def test_a_bot_is_ignored_unless_its_own_id_is_listed() -> None:
    bot = direct(BOT, from_bot=True)

    assert ignored(verdict(bot, direct="open"))
    assert ignored(verdict(bot, allow_from=("*",)))
    assert ignored(verdict(bot, Approved(people=frozenset({BOT}))))
    assert ignored(verdict(in_group(BOT, from_bot=True, mentioned=True), groups="all", group_allow=("*",)))
    assert verdict(bot, allow_from=(BOT,)) == Accept()


def test_a_listed_bot_gets_no_code_for_a_group() -> None:
    assert ignored(verdict(in_group(BOT, from_bot=True, mentioned=True), allow_from=(BOT,)))


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
