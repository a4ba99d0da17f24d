"""Who a message counts for: a person of ``[people]`` in all chats, and in a group whoever writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.message import Inbound, Sender
from gateway.turns import outcomes
from gateway.turns.quota import Quota, payer_of
from session.context.scopes import Scopes
from session.models.spending import Spending
from session.transcript.key import split
from tests.session.spending_victim import AtOnce
from tests.support.clock import Clock

PEOPLE = {"ada": ["telegram:1", "telegram:-100", "discord:77", "web:ada"]}
GROUP = "telegram:-100"


def letter(key: str, sender: str = "", *, id_: str = "m1", group: bool = False) -> Inbound:
    channel, chat_id = split(key)
    return Inbound(
        v=1,
        id=id_,
        key=key,
        channel=channel,
        chat_id=chat_id,
        text="hello",
        sender=Sender(id=sender),
        group=group,
    )


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

    assert payer_of(scopes)(inbound) == payer


async def test_what_is_left_in_a_listed_group_is_told_of_who_asks(tmp_path: Path) -> None:
    scopes = Scopes(tmp_path, kind="chat", people=PEOPLE)
    clock = Clock()
    spending = Spending(tmp_path / "usage", disk=AtOnce(), clock=clock, durable=True, turns_per_hour=5)
    quota = Quota(spending, turns_per_hour=5, person_of=payer_of(scopes), clock=clock)

    with quota.running(quota.payer(letter("telegram:1", "1"))):
        hers = await quota.left(outcomes.request(letter(GROUP, "1", group=True)))
        his = await quota.left(outcomes.request(letter(GROUP, "666", group=True)))

    assert (hers, his) == (["left this hour: 4 of 5 messages"], ["left this hour: 5 of 5 messages"])
