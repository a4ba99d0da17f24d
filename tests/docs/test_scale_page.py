"""The plan for a million chats a day has the numbers that ``bench scale`` simulates."""

from __future__ import annotations

import re

from bench import scale
from bench.__main__ import LONG, NOUNS
from bench.row import read
from gateway.config.settings import LimitsSettings
from tests.support.harness import ROOT

PAGE = (ROOT / "docs" / "scale.md").read_text()


def test_the_plan_is_the_one_that_is_simulated() -> None:
    """Letters a second, turns at once and partitions, each from the benchmark's own arithmetic."""
    cpu_s = 1 / next(row.ours for row in read("litellm") if row.name == "turns through LiteLLM")
    plan = scale.planned(cpu_s)
    mean = plan.letters_per_s / scale.PEAK

    assert (
        f"{scale.CHATS * scale.EACH // 10**6} million letters a day: {mean:.0f} a second in the mean" in PAGE
    )
    assert f"and {round(plan.letters_per_s, -1):.0f} in a busy" in PAGE
    assert f"a model that takes {scale.MODEL_S:g} s for an answer" in PAGE
    assert f"CPU of a turn ÷ {scale.BUSY:g}" in PAGE
    assert f"by Little's law: {round(plan.under_way, -2):,.0f}." in PAGE
    assert f"{scale.PARTITIONS} is the\n  most there are" in PAGE


def test_the_rows_are_of_the_turn_that_was_measured_last() -> None:
    """The page of figures has both: a plan of another turn's cost would stand beside it."""
    cpu_s = 1 / next(row.ours for row in read("litellm") if row.name == "turns through LiteLLM")
    plan = scale.planned(cpu_s)
    simulated = read("scale")[0].notes["what"]

    told = f"{cpu_s * 1e3:.1f} ms of CPU each, a model of {scale.MODEL_S:g} s: {plan.workers} workers"
    assert f"{told}, concurrent_turns {plan.slots}" in simulated, "run `python -m bench scale`"


def test_what_gives_way_first_is_what_the_simulation_shows() -> None:
    """The default of turns at once keeps letters waiting for minutes; the plan's own number does not."""
    rows = {row.name: row for row in read("scale")}
    slots = LimitsSettings().concurrent_turns

    assert f"At its default of {slots} a worker ends {slots / scale.MODEL_S:.0f} turns a second" in PAGE
    assert f"The simulation's row of {slots} shows letters waiting for minutes" in PAGE
    assert rows[f"… with concurrent_turns {slots}"].ours > 60
    assert rows["added before the model is asked, p99"].ours < 1


def test_each_row_that_the_page_names_is_there() -> None:
    """``bench NAME`` is a benchmark, and so is each anchor of the page of figures."""
    named = re.findall(r"(?:python -m )?bench ([a-z]+)`|benchmarks\.md#([a-z]+)", PAGE)
    assert named
    assert {one or other for one, other in named} <= set(NOUNS | LONG)
