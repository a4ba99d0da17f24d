"""Codes for strangers: few, short-lived, told once a day, and granted by the operator alone."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import durable
from channels.errors import ChannelError, NewerFile
from channels.pairing import (
    ALPHABET,
    MAX_PENDING,
    MAX_TOLD,
    Approved,
    NobodyThere,
    NoSuchCode,
    Pairing,
    approved,
)
from tests.gateway.embedded_place import files_at_most
from tests.support.clock import Clock

ADA, GROUP = "100", "-100200"


def place(state: Path, clock: Clock | None = None) -> Pairing:
    return Pairing(state, clock=clock or Clock())


def ask(pairing: Pairing, id: str = ADA, *, message: str = "t:1", channel: str = "telegram") -> str | None:
    kind = "group" if id.startswith("-") else "person"
    return pairing.ask(channel, id, kind=kind, name="Ada", message_id=message)  # type: ignore[arg-type]


def code_for(pairing: Pairing, id: str = ADA, **more: str) -> str:
    code = ask(pairing, id, **more)
    assert code is not None
    return code


def test_a_code_has_eight_characters_that_nobody_mixes_up(tmp_path: Path) -> None:
    codes = {code_for(place(tmp_path / str(n))) for n in range(20)}

    assert len(codes) == 20
    assert all(len(code) == 8 and set(code) <= set(ALPHABET) for code in codes)
    assert not set(ALPHABET) & set("01ILO")


def test_an_approved_code_lets_its_person_in_on_its_channel_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    pairing = place(tmp_path, clock)
    code = code_for(pairing)

    entry = pairing.approve(f" {code.lower()} ")

    clock.forward(days=4_000)
    ask(pairing, "5", message="t:9")
    assert (entry.who, entry.name) == ("telegram:100", "Ada")
    assert approved(tmp_path, "telegram") == Approved(people=frozenset({ADA}))
    assert approved(tmp_path, "discord") == Approved()


def test_an_approved_group_is_kept_apart_from_people(tmp_path: Path) -> None:
    pairing = place(tmp_path)

    pairing.approve(code_for(pairing, GROUP))

    assert approved(tmp_path, "telegram") == Approved(groups=frozenset({GROUP}))


def test_a_code_is_good_for_an_hour_and_once(tmp_path: Path) -> None:
    clock = Clock()
    pairing = place(tmp_path, clock)
    late, good = code_for(pairing), code_for(pairing, "101")
    clock.forward(minutes=59)
    pairing.approve(good)
    clock.forward(minutes=1)

    for code in (late, good, "", "ABCDEFGH"):
        with pytest.raises(NoSuchCode):
            pairing.approve(code)

    assert approved(tmp_path, "telegram").people == {"101"}


def test_a_crowd_of_strangers_keeps_nobody_out(tmp_path: Path) -> None:
    """The oldest code gives way to a new one; whose code gave way may ask again after a while."""
    clock = Clock()
    pairing = place(tmp_path, clock)
    first = code_for(pairing, "0")
    for n in range(1, MAX_PENDING):
        clock.forward(seconds=1)
        code_for(pairing, str(n))
    assert len(pairing.rows()) == MAX_PENDING

    newest = code_for(pairing)

    assert len(pairing.rows()) == MAX_PENDING
    with pytest.raises(NoSuchCode):
        pairing.approve(first)
    assert pairing.approve(newest).id == ADA
    assert ask(pairing, "0", message="t:2") is None
    clock.forward(minutes=10)
    assert ask(pairing, "0", message="t:3") is not None


def test_no_more_than_sixty_are_told_a_code_within_an_hour(tmp_path: Path) -> None:
    clock = Clock()
    pairing = place(tmp_path, clock)
    told = [ask(pairing, str(n), message=f"t:{n}") for n in range(MAX_TOLD + 40)]

    assert [code is not None for code in told] == [True] * MAX_TOLD + [False] * 40
    assert ask(pairing, ADA, channel="discord") is not None
    clock.forward(hours=1)
    assert ask(pairing, ADA) is not None


def test_everyone_is_answered_once_a_day_also_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    code_for(place(tmp_path, clock))

    for hours in (0, 1, 22):
        clock.forward(hours=hours)
        assert ask(place(tmp_path, clock), message=f"t:{hours + 2}") is None
    clock.forward(hours=1)
    assert ask(place(tmp_path, clock), message="t:99") is not None


def test_the_same_message_again_gets_the_same_code(tmp_path: Path) -> None:
    """A kill between the code and its notice costs nothing: the platform delivers the message again."""
    code = ask(place(tmp_path))

    assert ask(place(tmp_path)) == code


@pytest.mark.parametrize("who", ["telegram:100", "100"])
def test_revoke_takes_back_access(tmp_path: Path, who: str) -> None:
    pairing = place(tmp_path)
    pairing.approve(code_for(pairing))

    [entry] = pairing.revoke(who)

    assert entry.who == "telegram:100"
    assert approved(tmp_path, "telegram") == Approved()
    with pytest.raises(NobodyThere):
        pairing.revoke(who)


def test_revoke_takes_back_a_code_and_a_bare_id_means_every_channel(tmp_path: Path) -> None:
    pairing = place(tmp_path)
    code = code_for(pairing)
    code_for(pairing, channel="discord")

    assert {each.who for each in pairing.revoke(ADA)} == {"telegram:100", "discord:100"}
    with pytest.raises(NoSuchCode):
        pairing.approve(code)


def test_rows_show_who_waits_and_who_was_let_in(tmp_path: Path) -> None:
    clock = Clock()
    pairing = place(tmp_path, clock)
    pairing.approve(code_for(pairing, GROUP))
    clock.forward(minutes=1)
    code = code_for(pairing)

    group, person = pairing.rows()

    assert group | {"at": ""} == {
        "code": None,
        "who": "telegram:-100200",
        "name": "Ada",
        "channel": "telegram",
        "state": "approved",
        "at": "",
    }
    assert (person["code"], person["state"], person["at"]) == (
        code,
        "pending",
        "2027-01-01T00:01:00.000000+00:00",
    )
    clock.forward(hours=1)
    assert pairing.rows() == [group]


def test_the_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        code_for(place(tmp_path / "state"))
    finally:
        os.umask(old)

    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "state").iterdir()} == {0o600}


def test_a_newer_or_damaged_database_is_never_overwritten_nor_does_it_let_anyone_in(tmp_path: Path) -> None:
    newer, damaged = tmp_path / "newer", tmp_path / "damaged"
    newer.mkdir()
    with closing(sqlite3.connect(newer / "channels.db")) as file:
        file.execute("PRAGMA user_version = 2")
    damaged.mkdir()
    (damaged / "channels.db").write_bytes(b"no database " * 1000)
    for state, error in ((newer, NewerFile), (damaged, ChannelError)):
        before = (state / "channels.db").read_bytes()
        for work in (lambda: ask(place(state)), lambda: approved(state, "telegram"), place(state).rows):  # noqa: B023
            with pytest.raises(error, match=r"channels\.db"):
                work()
        assert (state / "channels.db").read_bytes() == before


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    pairing = place(tmp_path)
    pairing.approve(code_for(pairing))

    with files_at_most(10), pytest.raises(ChannelError, match="cannot be written"):
        ask(pairing, "101")

    assert approved(tmp_path, "telegram").people == {ADA}


def test_who_is_let_in_while_a_code_waits_needs_no_code(tmp_path: Path) -> None:
    """A group that moved is let in under its new id; whoever is in stays in."""
    pairing = place(tmp_path)
    code_for(pairing)
    for name in ("Ada", "Eve"):
        pairing.admit("telegram", ADA, kind="person", name=name)

    [row] = pairing.rows()
    assert (row["state"], row["name"]) == ("approved", "Ada")


def test_names_are_forgotten_and_access_where_that_is_meant(tmp_path: Path) -> None:
    """By the id, and by the chat in which it was asked for; others keep theirs."""
    pairing = place(tmp_path)
    for id_, chat, name in (("1", "9", "Eve 1"), ("2", "2", "Eve 2"), ("3", "3", "Ada")):
        code = pairing.ask("telegram", id_, kind="person", name=name, message_id="t:1", chat_id=chat)
        pairing.approve(str(code))
    assert [row["who"] for row in pairing.records({("telegram", "9")})] == ["telegram:1"]

    # An adapter has it open.
    with durable.open_channels(tmp_path, down=lambda error: error):
        assert pairing.forget({("telegram", "9")}, access=False) == 1
        assert pairing.forget({("telegram", "2")}, access=True) == 1
        assert b"Eve" not in (tmp_path / "channels.db-wal").read_bytes()
    assert b"Eve" not in (tmp_path / "channels.db").read_bytes()
    assert {row["who"]: row["name"] for row in pairing.rows()} == {"telegram:1": "", "telegram:3": "Ada"}
    # Nobody knows any more that they were answered.
    assert ask(pairing, "2", message="t:2") is not None
    assert place(tmp_path / "none").forget({("telegram", "9")}, access=True) == 0
    assert not (tmp_path / "none").exists()


def _admit_many(state: Path, first: int, both: Barrier) -> None:
    both.wait()
    for n in range(first, first + 20):
        Pairing(state, clock=Clock()).admit("telegram", str(n), kind="person", name="")


def test_two_processes_lose_none_of_each_others_changes(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    both = [spawn.Process(target=_admit_many, args=(tmp_path, first, barrier)) for first in (0, 100)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert [each.exitcode for each in both] == [0, 0]
    assert len(approved(tmp_path, "telegram").people) == 40
