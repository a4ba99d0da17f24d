"""What a run is told as: where a guarantee broke, one line runs that batch again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.__main__ import read_options
from tests.chaos.batch import Result, awaited
from tests.chaos.records import Account, Guarantee, Message, Records
from tests.chaos.report import document, table
from tests.chaos.run import Outcome, Plan

LOST = "ann-00001 (plain) has no answer in the transcript"


def batch(seed: int, kills: int, *broken: str) -> Result:
    return Result(seed, kills, Account([Guarantee("G1", "no message is lost", 3, list(broken))]))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(450, rabbitmq=False, daemons=1, seed=30),
        Plan(450, rabbitmq=True, daemons=3, seed=30),
        Plan(450, rabbitmq=True, daemons=3, seed=30, url="amqp://ada:secret@127.0.0.1:5672/chaos"),
    ],
)
def test_a_seed_that_fails_is_told_with_the_line_that_replays_it(plan: Plan) -> None:
    """The batch that broke, alone: its own seed and kills, where it ran, by options that the verb takes."""
    outcome = Outcome([batch(30, 200), batch(31, 200), batch(32, 50, LOST)], Path("/tmp/kept"))

    told = table(plan, outcome).splitlines()

    assert f"G1 {LOST}" in told
    [line] = [each.removeprefix("replay: ") for each in told if each.startswith("replay: ")]
    assert document(plan, outcome)["replay"] == line
    python, option, module, *words = line.split()
    assert (python, option, module) == ("python", "-m", "tests.chaos")
    again, _ = read_options(words)
    assert again == replace(plan, seed=32, kills=50, keep=True, rabbitmq=plan.rabbitmq or bool(plan.url))


def test_a_run_that_broke_nothing_has_nothing_to_replay() -> None:
    plan, outcome = Plan(200, rabbitmq=False, daemons=1, seed=30), Outcome([batch(30, 200)], None)

    assert "replay" not in table(plan, outcome)
    assert document(plan, outcome)["replay"] is None


def test_what_is_not_told_whole_is_waited_for() -> None:
    """The last pieces of a long reply may be late by the rate of the platform; what nobody wrote is not."""
    words = (
        [LOST],
        [],
        ["finn-00002: stored 'a b', told {'a'}"],
        [],
        [],
        [],
        ["bob-00003 is parked", "by-hand"],
    )
    account = Account([Guarantee(f"G{at}", "", 3, broken) for at, broken in enumerate(words, 1)])
    sent = {
        "ann": [Message("ann-00001", "ann", "plain", "hello")],
        "finn": [Message("finn-00002", "finn", "plain", "hello")],
    }
    sent |= {"bob": [Message(f"bob-0000{number}", "bob", "plain", "hello") for number in (3, 4)]}

    assert awaited(account, Records(sent=sent)) == {"ann-00001", "finn-00002", "bob-00003"}
