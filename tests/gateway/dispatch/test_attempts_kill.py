"""Whom a crash is charged to: never to letters that waited, at last to the one that kills its daemon."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.gateway.attempts_place import Life, Place
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.verdict import check

pytestmark = pytest.mark.slow

FOUR = {name: f"hello from {name}" for name in ("ann", "bob", "cy", "dan")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def on_rabbitmq(tmp_path: Path, broker: Broker, broker_name: str) -> Place:
    return Place(tmp_path, broker.url, broker_name)


@pytest.fixture(params=["place", "on_rabbitmq"])
def either(request: pytest.FixtureRequest) -> Place:
    """A place on each kind of queue."""
    place: Place = request.getfixturevalue(request.param)
    return place


async def asked_and_killed(place: Place, count: int) -> list[str]:
    """Start a life whose requests hang, and kill it when ``count`` of them are under way."""
    async with place.life("hang") as life:
        await life.said("asked", count)
        await life.kill()
    return life.all("asked")


async def test_kills_during_the_import_are_charged_to_no_letter(place: Place) -> None:
    """Four chats, four lives, one model call each: all are answered."""
    async with place.life("hang") as life:
        await life.put(**FOUR)
        await life.said("asked", 4)
        await life.kill()
    for _ in range(2):
        async with place.life("import") as life:
            await life.said("importing")
            await life.kill()

    async with place.life("answer") as life:
        assert await life.left() == []

    assert sorted(life.all("answered")) == sorted(FOUR)


@guarantee(
    "failures",
    "A crash counts only for messages whose turns were running, and none is parked before it ran alone.",
)
async def test_only_a_letter_that_ran_alone_is_parked(on_rabbitmq: Place) -> None:
    """Two kills met all four, side by side; the third met the one that ran alone, and nobody who waited."""
    async with on_rabbitmq.life("hang") as life:
        await life.put(**FOUR)
        await life.said("asked", 4)
        await life.kill()
    assert sorted(await asked_and_killed(on_rabbitmq, 4)) == sorted(FOUR.values())
    (alone,) = await asked_and_killed(on_rabbitmq, 1)

    async with on_rabbitmq.life("answer") as life:
        parked = await life.left()

    assert [FOUR[name] for name in parked] == [alone]
    assert sorted(life.all("answered")) == sorted(set(FOUR) - set(parked))


async def test_one_kill_and_clean_restarts_park_nobody(place: Place) -> None:
    """A turn that a restart in good order ends is struck out, whether it ran for the first time or again."""
    async with place.life("hang") as life:
        await life.put(**FOUR)
        await life.said("asked", 4)
        await life.stop()
    assert len(await asked_and_killed(place, 4)) == 4
    async with place.life("hang") as life:
        await life.said("asked", 4)
        await life.stop()
    assert len(await asked_and_killed(place, 4)) == 4
    async with place.life("hang") as life:
        await life.said("asked")
        await life.stop()
    assert len(life.all("asked")) == 1

    async with place.life("answer") as life:
        assert await life.left() == []


async def until_it_lives(place: Place, life: Life) -> tuple[int, list[str]]:
    """Start lives until one comes to an end by itself; return how many died, and what was parked."""
    deaths = 0
    while (code := await life.died()) != 0:
        assert code == -signal.SIGKILL
        deaths += 1
        async with place.life("answer") as life:
            await life.died()
    return deaths, life.all("left")[0].split()


def the_four_are_answered(place: Place) -> bool:
    return check(place.folder, {f"foreign_{name}": [name] for name in FOUR}).sound


@guarantee(
    "failures",
    "A message that crashes the gateway is parked after `limits.attempts` crashes, and no other is.",
)
async def test_poison_is_parked_after_so_many_deaths_and_its_neighbours_are_answered(either: Place) -> None:
    """Three deaths, the last one alone."""
    async with either.life("answer") as life:
        await life.put(**{name: f"takes 1 for {name}" for name in FOUR})
        life.send(poison="die late")
        assert await until_it_lives(either, life) == (3, ["poison"])

    assert the_four_are_answered(either)


@guarantee(
    "failures",
    "A message that crashes the gateway is parked after `limits.attempts` crashes, and no other is.",
)
async def test_poison_that_kills_at_once_takes_no_neighbour_with_it(place: Place) -> None:
    """Its first start left no trace, those of its neighbours did: they have more deaths, and it is parked."""
    async with place.life("hang") as life:
        await life.put(**FOUR)
        await life.said("asked", 4)
        await life.kill()
    async with place.life("hang") as life:
        await life.said("asked", 4)
        life.send(poison="die now")
        assert await until_it_lives(place, life) == (4, ["poison"])

    assert the_four_are_answered(place)
