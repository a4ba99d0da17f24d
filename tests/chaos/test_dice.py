"""What chaos draws: the same of one seed, other things of another, each point one that can be installed."""

from __future__ import annotations

import random

import pytest

from tests.chaos.dice import Life, draw, draw_for_broker
from tests.chaos.points import POINTS, read
from tests.support.proxy import LINES


def lives(seed: int, count: int = 300) -> list[Life]:
    dice = random.Random(seed)
    return [draw(dice, rabbit=True, others=True) for _ in range(count)]


def test_a_seed_decides_everything_drawn() -> None:
    assert lives(1) == lives(1)
    assert lives(1) != lives(2)
    assert draw_for_broker(random.Random(1), 500) == draw_for_broker(random.Random(1), 500)


def test_every_harm_is_drawn() -> None:
    dice = random.Random(1)
    drawn = [
        draw(dice, rabbit=True, others=True, part=part)
        for _ in range(2000)
        for part in ("session", "channels", "all")
    ]
    kinds = {each.kind for each in draw_for_broker(random.Random(1), 3000)}

    faults = {"", "freeze", "clock", "slow disk", "full disk", "failing disk", "platform cut", *LINES}
    assert {life.fault for life in drawn} == faults
    assert {read(life.point)[0] for life in drawn if life.point} == set(POINTS)
    assert any(life.unready for life in drawn)
    assert any(life.fault == "freeze" and life.fault_s > 20 for life in drawn)
    assert min(life.lasts_s for life in drawn) < 0.01
    assert kinds == {"broker killed", "memory alarm"}


def test_who_runs_no_adapter_dies_at_no_point_of_one() -> None:
    """… so that an older seed draws what it drew; who runs adapters alone dies at no point of a turn."""
    dice = random.Random(1)
    alone = [draw(dice, rabbit=True, others=True, part="channels") for _ in range(2000)]

    assert not {"poll", "accept", "trying", "send", "sent"} & {read(one.point)[0] for one in lives(1, 2000)}
    assert "platform cut" not in {one.fault for one in lives(1, 2000)}
    assert not {"ask", "tool", "append", "journal"} & {read(one.point)[0] for one in alone}


@pytest.mark.parametrize("others", [False, True])
def test_one_alone_is_never_frozen_for_long(others: bool) -> None:
    dice = random.Random(3)
    longest = max(draw(dice, rabbit=False, others=others).fault_s for _ in range(3000))

    assert (longest > 20) is others
