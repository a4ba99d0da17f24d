"""What chaos draws: the same of one seed, other things of another, each point one that can be installed."""

from __future__ import annotations

import random

from tests.chaos.dice import Life, draw, draw_blow, draw_for_broker
from tests.support.killable import POINTS, read
from tests.support.proxy import LINES


def lives(seed: int, count: int = 2000, **options: object) -> list[Life]:
    dice = random.Random(seed)
    return [draw(dice, **{"rabbit": True} | options) for _ in range(count)]  # type: ignore[arg-type]


def test_a_seed_decides_everything_drawn_and_every_harm_is() -> None:
    drawn = [life for part in ("session", "channels", "all") for life in lives(1, part=part)]
    blows = [draw_blow(random.Random(seed)) for seed in range(1000)]

    assert lives(1, 300) == lives(1, 300) != lives(2, 300)
    faults = {"", "freeze", "clock", "slow disk", "full disk", "failing disk", "platform cut", *LINES}
    assert {life.fault for life in drawn} == faults
    assert {read(life.point)[0] for life in drawn if life.point} == set(POINTS)
    assert any(life.unready for life in drawn)
    assert min(life.lasts_s for life in drawn) < 0.01
    kinds = {kind for kind, _ in draw_for_broker(random.Random(1), 3000)}
    assert kinds == {"broker killed", "memory alarm"}
    assert {(blow.of, blow.how) for blow in blows} == {
        *(("gateway", how) for how in ("kill", "freeze", "cut")),
        *(("worker", how) for how in ("kill", "freeze", "stuck", "cut")),
    }


def test_who_runs_no_adapter_dies_at_no_point_of_one() -> None:
    """… and who runs adapters alone at no point of a turn."""
    alone = {read(one.point)[0] for one in lives(1, part="channels")}

    assert not {"poll", "accept", "trying", "send", "sent"} & {read(one.point)[0] for one in lives(1)}
    assert not {"ask", "tool", "append", "journal"} & alone
