"""What a summary that fails leaves behind, and who pays for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
import structlog

from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.errors import BadAnswer, ModelRefused, NotCompacted, NotNow
from session.models.model import Answer, Meter, Model, Prompt, Usage
from tests.contracts.models import Script
from tests.session.compaction_talk import AT, STRUCTURED, filled, user
from tests.session.summary_asking import AWAY, KEY, LONG, PAGE, leaving, summarised
from tests.support.clock import Clock

# -- failure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "reason"),
    [(AWAY, "away"), (ModelRefused("no"), "refused"), (BadAnswer("nothing came"), "answer"), ("", "answer")],
)
async def test_a_failure_starts_a_cooldown_and_writes_one_line_to_the_log(step: Any, reason: str) -> None:
    """For its conversation alone; when it has passed the next try is made."""
    clock, rules = Clock(), CompactionRules(keep_recent_tokens=0, cooldown_s=120)
    model = Script([step, STRUCTURED, STRUCTURED])
    compactor, made = Compactor(model, clock=clock.monotonic), leaving(LONG, rules)

    with structlog.testing.capture_logs() as logged, pytest.raises(NotCompacted) as caught:
        await compactor.summarise(made, rules, key=KEY)
    assert caught.value.reason == reason
    assert [(line["event"], line["key"], line["reason"]) for line in logged] == [
        ("compaction.failed", KEY, reason)
    ]

    clock.forward(119)
    assert compactor.rests_s(KEY) == 1.0
    with structlog.testing.capture_logs() as logged, pytest.raises(NotCompacted) as caught:
        await compactor.summarise(made, rules, key=KEY)
    assert (caught.value.reason, logged, len(model.prompts)) == ("resting", [], 1)
    assert (await compactor.summarise(made, rules, key="telegram:2")).text == STRUCTURED

    clock.forward(1)
    assert (await compactor.summarise(made, rules, key=KEY)).text == STRUCTURED
    assert compactor.rests_s(KEY) == 0.0


async def test_a_person_who_asks_does_not_wait_for_the_cooldown() -> None:
    """``/compact`` tries at once, and where it succeeds the cooldown is over."""
    rules = CompactionRules(keep_recent_tokens=0)
    compactor, made = Compactor(Script([AWAY, STRUCTURED]), clock=Clock().monotonic), leaving(LONG, rules)

    with pytest.raises(NotCompacted):
        await compactor.summarise(made, rules, key=KEY)
    assert (await compactor.summarise(made, rules, key=KEY, asked=True)).text == STRUCTURED
    assert compactor.rests_s(KEY) == 0.0


async def test_a_slow_model_is_given_up_after_the_timeout() -> None:
    """The request is ended, and nothing comes of it."""
    model = Script([STRUCTURED])
    model.release.clear()

    with pytest.raises(NotCompacted) as caught:
        await summarised(model, LONG, CompactionRules(keep_recent_tokens=0, timeout_s=0.01))

    assert caught.value.reason == "slow"


async def test_who_is_cancelled_starts_no_cooldown() -> None:
    """A stopped turn is no failure of the model."""
    model, rules = Script([STRUCTURED]), CompactionRules(keep_recent_tokens=0)
    model.release.clear()
    compactor = Compactor(model)

    task = asyncio.ensure_future(compactor.summarise(leaving(LONG, rules), rules, key=KEY))
    await model.held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert compactor.rests_s(KEY) == 0.0


async def test_a_failure_in_a_later_step_leaves_nothing() -> None:
    """Half a summary is none."""
    model = Script([STRUCTURED, PAGE])

    with pytest.raises(NotCompacted):
        await summarised(
            model,
            [user(filled("a", 300)) for _ in range(30)],
            CompactionRules(window=8_000, keep_recent_tokens=0),
        )
    assert len(model.prompts) == 2


async def test_echo_writes_no_summaries() -> None:
    """The model without a network is not asked."""
    model = Script([STRUCTURED], plain=True)

    with pytest.raises(NotCompacted) as caught:
        await summarised(model, LONG, CompactionRules(keep_recent_tokens=0))

    assert (caught.value.reason, model.prompts) == ("plain", [])


async def test_the_budget_of_the_background_holds_no_turn_up() -> None:
    """Background work counts its calls and stops at the limit; what a turn waits for does neither."""
    rules, taken = CompactionRules(keep_recent_tokens=0), []

    async def take() -> None:
        taken.append(1)
        if len(taken) > 1:
            raise NotNow("used up", reason="budget", until=datetime.fromisoformat(AT))

    compactor = Compactor(Script([STRUCTURED] * 3), take=take)
    made = leaving(LONG, rules)

    await compactor.summarise(made, rules, key=KEY)
    assert taken == []
    await compactor.summarise(made, rules, key=KEY, background=True)
    with pytest.raises(NotCompacted) as caught:
        await compactor.summarise(made, rules, key=KEY, background=True)
    assert (caught.value.reason, len(taken), compactor.rests_s(KEY)) == ("budget", 2, 0.0)


async def test_the_cost_is_metered_also_where_it_fails() -> None:
    """A turn knows what its compaction cost."""
    meter = Meter()
    steps = [Answer(STRUCTURED, usage=Usage(100, 10, 0.5)), Answer("", usage=Usage(7, 1, 0.25))]
    model = Script(steps)

    summary = await summarised(model, LONG, CompactionRules(keep_recent_tokens=0), meter=meter)
    with pytest.raises(NotCompacted):
        summary = await summarised(model, LONG, CompactionRules(keep_recent_tokens=0), meter=meter)

    assert meter.usage == Usage(107, 11, 0.75)
    assert summary.usage == Usage(100, 10, 0.5)


async def test_what_no_turn_waits_for_is_paid_by_the_cost_meter() -> None:
    """Each request once, also where it fails; that of a turn is the turn's, and made on any day."""
    cost_meter, meter = Counted(), Meter()
    steps = [Answer(text, usage=Usage(100, 10, 0.5)) for text in (STRUCTURED, "", STRUCTURED, STRUCTURED)]
    compactor = Compactor(Script(steps), cost_meter=cost_meter)
    rules = CompactionRules(keep_recent_tokens=0)
    made = leaving(LONG, rules)

    await compactor.summarise(made, rules, key=KEY, background=True)
    with pytest.raises(NotCompacted):
        await compactor.summarise(made, rules, key=KEY, asked=True)
    await compactor.summarise(made, rules, key=KEY, asked=True)
    assert cost_meter.paid == [(KEY, Usage(100, 10, 0.5))] * 3

    cost_meter.until = datetime.fromisoformat(AT)
    with pytest.raises(NotCompacted) as caught:
        await compactor.summarise(made, rules, key=KEY, asked=True)
    assert (caught.value.reason, compactor.rests_s(KEY)) == ("cost", 0.0)
    await compactor.summarise(made, rules, key=KEY, meter=meter)
    assert meter.usage == Usage(100, 10, 0.5)
    assert len(cost_meter.paid) == 3


class Counted:
    """A cost meter that keeps what it paid, and is closed when the test says so."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, Usage]] = []
        self.until: datetime | None = None

    def pay(self, key: str, usage: Usage) -> None:
        self.paid.append((key, usage))

    @asynccontextmanager
    async def request(
        self, key: str, model: Model, prompt: Prompt
    ) -> AsyncIterator[Callable[[Usage | None], None]]:
        yield lambda usage: self.pay(key, usage or Usage())

    def calls(self, since: datetime) -> list[datetime]:
        return []

    def closed_until(self) -> datetime | None:
        return self.until

    async def afford(self) -> None:
        if self.until is not None:
            raise NotNow("spent", reason="cost", until=self.until)
