"""What a person may hear, decide and pay for: in a direct chat, in a group, and in a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound, Sender
from channels.pairing import Pairing
from gateway.app.wiring_tools import Deciders
from gateway.config.settings import Settings
from gateway.dispatch import messages
from gateway.dispatch.failures import Confidants
from gateway.dispatch.limits import Quota
from gateway.dispatch.policy import wait_words
from session.context.scopes import Scopes
from session.errors import AwayCause, ModelAway
from tests.gateway.worker_rig import letter as letter_of
from tests.session.spending_place import spending_in
from tests.support.clock import Clock


def letter(key: str, sender: str = "", *, id_: str = "m1", **fields: Any) -> Inbound:
    return letter_of("hi", id_, key, sender=Sender(id=sender), **fields)


@pytest.mark.parametrize(
    ("inbound", "confided"),
    [
        (letter("telegram:7", "7"), True),
        (letter("telegram:8", "8"), True),
        (letter("telegram:9", "9"), False),
        (letter("telegram:-100", "7", group=True), False),
        (letter("discord:7", "7"), False),
        (letter("web:a"), True),
        (letter("cli:direct"), True),
        (letter("cron:job", answer_to="telegram:-100"), False),
        (letter("telegram:7", "7", source="cron"), False),
        (letter("web:a", answer_to="telegram:-100"), False),
        (letter("foreign:ada", "7"), False),
    ],
)
def test_who_may_know(tmp_path: Path, inbound: Inbound, confided: bool) -> None:
    """Listed and approved people in their direct chat, and clients of our own; nobody else."""
    telegram = {"allow_from": ["7"], "direct": "open"}
    settings = Settings.model_validate({"workspace": tmp_path, "channels": {"telegram": telegram}})
    Pairing(settings.state).admit("telegram", "8", kind="person", name="Ada")

    assert Confidants(settings)(inbound) is confided


def test_unreadable_approvals_confide_nothing(tmp_path: Path) -> None:
    """A doubt is a no."""
    settings = Settings.model_validate({"workspace": tmp_path})
    settings.state.mkdir()
    (settings.state / "channels.db").write_bytes(b"no database " * 1000)

    assert Confidants(settings)(letter("telegram:8", "8")) is False


@pytest.mark.parametrize(
    ("cause", "word"),
    [
        ("credentials", "credentials"),
        ("quota", "quota"),
        ("unreachable", "unreachable"),
        ("rate_limit", "rate limit"),
    ],
)
def test_the_cause_is_one_word(cause: AwayCause, word: str) -> None:
    """Whoever may know reads it, others do not; nothing else differs."""
    error = ModelAway("secret words of the provider", cause=cause)

    told, plain = wait_words(error, named=True), wait_words(error)

    assert told == ("model_away", plain[1].replace(" right now.", f" right now ({word})."))
    assert word not in plain[1]
    assert "secret" not in told[1]


PEOPLE = {"ada": ["telegram:1", "telegram:-100", "discord:77", "web:ada"]}
GROUP = "telegram:-100"


@pytest.mark.parametrize(
    ("inbound", "payer"),
    [
        (letter("telegram:1", "1"), "people/ada"),
        # A direct chat of Discord has another id than its person, and is listed by its key.
        (letter("discord:77", "4"), "people/ada"),
        (letter("discord:77", "4", id_="sub:01J"), "people/ada"),
        (letter("web:ada"), "people/ada"),
        (letter("telegram:-5", "1", group=True), "people/ada"),
        # A group that is listed is others', too.
        (letter(GROUP, "1", group=True), "people/ada"),
        (letter(GROUP, "666", group=True), "telegram:666"),
        (letter(GROUP, "666", id_="sub:01J", group=True), "telegram:666"),
        (letter(GROUP, group=True), GROUP),
        # The page and the clock do not say whether it is one.
        (letter(GROUP, id_="web:01J"), GROUP),
    ],
)
def test_a_message_counts_for_who_writes_it(inbound: Inbound, payer: str) -> None:
    scopes = Scopes(Path("/w"), kind="chat", people=PEOPLE)

    assert Quota(spending_in(clock=Clock()), scopes=scopes).payer(inbound).person == payer


async def test_what_is_left_in_a_listed_group_is_told_of_who_asks(tmp_path: Path) -> None:
    scopes = Scopes(tmp_path, kind="chat", people=PEOPLE)
    clock = Clock()
    spending = spending_in(clock=clock)
    quota = Quota(spending, turns_per_hour=5, scopes=scopes, clock=clock)

    with quota.running(quota.payer(letter("telegram:1", "1"))):
        hers = await quota.left(messages.request(letter(GROUP, "1", group=True)))
        his = await quota.left(messages.request(letter(GROUP, "666", group=True)))

    assert (hers, his) == (["left this hour: 4 of 5 messages"], ["left this hour: 5 of 5 messages"])


@pytest.mark.parametrize(
    ("key", "sender", "group", "decides"),
    [
        ("telegram:7", "7", False, True),
        ("telegram:8", "8", False, True),
        ("telegram:9", "9", False, False),
        ("telegram:-100", "7", True, True),
        ("telegram:-100", "8", True, True),
        ("telegram:-100", "9", True, False),
        ("telegram:-100", "", True, False),
        # Everybody is let in there, for a chat of their own; in a group that says nothing.
        ("discord:5", "9", False, True),
        ("discord:5", "9", True, False),
        ("web:ann", "", False, True),
        ("cli:direct", "", False, True),
        ("foreign:ann", "", False, True),
    ],
)
def test_who_decides(tmp_path: Path, key: str, sender: str, *, group: bool, decides: bool) -> None:
    """People of the list and approved ones; those who are welcome decide in their own chat."""
    tables = {"telegram": {"allow_from": ["7"]}, "discord": {"direct": "open"}}
    settings = Settings.model_validate({"workspace": tmp_path, "channels": tables})
    Pairing(settings.state).admit("telegram", "8", kind="person", name="Ada")

    assert Deciders(settings)(letter(key, sender, group=group)) is decides
