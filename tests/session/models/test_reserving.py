"""What a request may cost is held before it is made, over processes that die, and settled by what it cost."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
import structlog

from session.errors import NotNow, OverCap, StoreError
from session.models.caps import Caps, Refused
from session.models.model import Echo, Meter, Need, Payer, Prompt, Usage
from session.models.spending import Spending
from session.models.turn_meter import turn_meter
from tests.contracts.models import Script, WordEmbedder, prompt
from tests.session.spending_victim import HELD_S, AtOnce, spending_of
from tests.support.clock import Clock
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = guarantee(
    "failures", "Processes never exceed a daily budget together, and a killed one leaves no money reserved."
)

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
ADA, BOB = Payer("cli:ada", "ada", id="m1"), Payer("cli:bob", "bob", id="m2")
TENTH = Need(10, 0.1)


class Priced(Script):
    """A scripted model whose requests may cost so much."""

    need = Need(100, 0.4)

    def most(self, prompt: Prompt, tokens: int) -> Need:
        return self.need


def spending(folder: Path, clock: Clock, caps: Caps, *, durable: bool = True) -> Spending:
    return Spending(folder / "usage", disk=AtOnce(), clock=clock, durable=durable, caps=caps, held_s=HELD_S)


@asynccontextmanager
async def victims(folder: Path, counts: Sequence[int]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Start processes that are ready to hold so many requests each; kill them in the end."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.session.spending_victim", str(folder))
    started = [
        await asyncio.create_subprocess_exec(
            *command, f"v{number}", str(count), cwd=ROOT, stdin=pipe, stdout=pipe
        )
        for number, count in enumerate(counts)
    ]
    try:
        for process in started:
            assert await line_of(process) == "ready"
        yield started
    finally:
        for process in started:
            await killed(process)


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()


async def held_by(process: asyncio.subprocess.Process) -> int:
    """Let a process hold, and return how many of its requests were granted."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    return int(await line_of(process))


async def killed(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await asyncio.wait_for(process.wait(), 60)


def passes(refusal: Refused | None) -> bool | None:
    return None if refusal is None else refusal.passes


async def test_processes_that_ask_at_once_never_pass_the_last_dollar_together(tmp_path: Path) -> None:
    """Of 24 requests in three processes, each for a tenth of the day, ten are made."""
    async with victims(tmp_path / "usage", [8, 8, 8]) as processes:
        granted = await asyncio.gather(*map(held_by, processes))

    assert sum(granted) == 10


async def test_what_a_killed_process_held_is_free_again_when_its_request_can_run_no_more(
    tmp_path: Path,
) -> None:
    clock = Clock(datetime.now(UTC))
    mine = spending_of(tmp_path / "usage", clock)
    async with victims(tmp_path / "usage", [9]) as [process]:
        assert await held_by(process) == 9
        await killed(process)

    clock.now = datetime.now(UTC)
    assert passes(await mine.reserve(ADA, Need(10, 0.2), Usage())) is True
    clock.forward(HELD_S + 1)
    assert await mine.reserve(ADA, Need(10, 0.2), Usage()) is None


@pytest.mark.parametrize("durable", [True, False])
async def test_a_turn_holds_its_estimate_then_what_it_cost(tmp_path: Path, durable: bool) -> None:
    """Another one waits where only requests under way are in its way, and is refused by what is spent."""
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=1.0), durable=durable)

    assert await mine.reserve(ADA, Need(10, 0.9), Usage()) is None
    assert passes(await mine.reserve(BOB, Need(10, 0.2), Usage())) is True
    mine.settle(ADA, Usage(5, 5, 0.5))
    assert await mine.reserve(BOB, Need(10, 0.2), Usage()) is None
    assert passes(await mine.reserve(ADA, Need(10, 0.4), Usage(5, 5, 0.5))) is True
    mine.settle(BOB, Usage(5, 5, 0.2))

    assert passes(await mine.reserve(ADA, Need(10, 0.4), Usage(5, 5, 0.5))) is False
    mine.record(BOB.key, BOB.person, Usage(5, 5, 0.1), id_=BOB.id)
    assert await mine.reserve(ADA, Need(10, 0.4), Usage(5, 5, 0.5)) is None


async def test_a_meter_waits_for_room_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    """The one before it cost less than it might have; nothing of either is held in the end."""
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=0.5))
    first, second = turn_meter(mine, ADA), turn_meter(mine, BOB)

    async def ask() -> None:
        async with second.request(Priced(), prompt("hello")):
            second.count(Usage(1, 1, 0.1))

    async with first.request(Priced(), prompt("hello")):
        waiting = asyncio.create_task(ask())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        first.count(Usage(1, 1, 0.05))
    await asyncio.wait_for(waiting, 10)

    await mine.refresh()
    [row] = mine.shown() or ()
    assert (row["used"], row["reserved"], row["left"]) == (0.15, 0, 0.35)


async def test_a_request_that_is_given_up_holds_nothing(tmp_path: Path) -> None:
    """Cancelled while it asks, while it waits for room and while it runs."""
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=0.5))
    for rest in (0.0, 0.02):
        meters = [turn_meter(mine, payer) for payer in (ADA, BOB)]
        tasks = [asyncio.create_task(for_ever(meter)) for meter in meters]
        await asyncio.sleep(rest)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await mine.aclose()
        await mine.refresh()

        [row] = mine.shown() or ()
        assert (row["used"], row["reserved"]) == (0, 0)


async def for_ever(meter: Meter) -> None:
    async with meter.request(Priced(), prompt("hello")):
        await asyncio.Event().wait()


async def test_without_a_price_tokens_alone_are_held_and_that_is_said_once(tmp_path: Path) -> None:
    caps = Caps(cost_per_day_usd=1.0, tokens_per_day=100)
    mine = spending(tmp_path, Clock(NOON), caps)
    meter = turn_meter(mine, ADA)

    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            async with meter.request(Script(), prompt("x" * 40, max_tokens=50)):
                cost, tokens = mine.shown() or ()
                assert (cost["reserved"], tokens["reserved"]) == (0, 60)
        with pytest.raises(OverCap) as caught:
            async with meter.request(Script(), prompt("x" * 400, max_tokens=50)):
                raise AssertionError

    assert [line["event"] for line in logs] == ["usage.no_price", "usage.limit_reached"]
    assert (caught.value.name, caught.value.until) == ("tokens_per_day", NOON.replace(day=2, hour=0))


async def test_without_a_cap_nothing_is_held_or_written(tmp_path: Path) -> None:
    mine = spending(tmp_path, Clock(NOON), Caps())

    async with turn_meter(mine, ADA).request(Priced(), prompt("hello")):
        pass
    async with mine.request("cli:ada", Priced(), prompt("hello")):
        pass
    assert mine.shown() is None
    # The built-in model costs nothing, whatever the cap.
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=1.0))
    async with turn_meter(mine, ADA).request(Echo(), prompt("hello")):
        pass

    assert list(tmp_path.iterdir()) == []


async def test_a_call_of_the_background_is_put_off_until_there_is_room(tmp_path: Path) -> None:
    """Until the next day where the money is spent, for a moment where it is only held."""
    clock = Clock(NOON)
    mine = spending(tmp_path, clock, Caps(cost_per_chat_per_day_usd=1.0))

    async with mine.request("cli:ada", Priced(), prompt("hello")) as count:
        count(Usage(10, 10, 0.3))
    assert await mine.reserve(ADA, Need(10, 0.4), Usage()) is None
    with pytest.raises(NotNow) as held:
        async with mine.request("cli:ada", Priced(), prompt("hello")):
            raise AssertionError
    mine.settle(ADA, Usage(10, 10, 0.4))
    with pytest.raises(NotNow) as spent:
        async with mine.request("cli:ada", Priced(), prompt("hello")):
            raise AssertionError
    async with mine.request("cli:bob", Priced(), prompt("hello")):
        pass

    assert held.value.until - NOON < timedelta(minutes=2)
    assert (spent.value.reason, spent.value.until) == ("cost", NOON.replace(day=2, hour=0))


@pytest.mark.parametrize(
    ("caps", "row"),
    [
        (Caps(cost_per_chat_per_day_usd=1.0), Payer("cli:ada", "eve", id="m9")),
        (Caps(cost_per_person_per_day_usd=1.0), Payer("cli:eve", "ada", id="m9")),
        (Caps(cost_per_job_per_day_usd=1.0), Payer("cli:eve", "eve", "daily", "m9")),
        (Caps(tokens_per_day=100), Payer("cli:eve", "eve", id="m9")),
    ],
)
async def test_each_cap_counts_what_is_its_own(tmp_path: Path, caps: Caps, row: Payer) -> None:
    """Also after a restart, and until midnight UTC alone; what others spend counts for the day alone."""
    clock = Clock(NOON)
    mine = spending(tmp_path, clock, caps)
    asked = Payer("cli:ada", "ada", "daily", "m1")
    other = Payer("cli:zoe", "zoe", "weekly", "m2")
    mine.record(row.key, row.person, Usage(90, 5, 0.95), job=row.job, id_=row.id)
    await mine.aclose()

    again = spending(tmp_path, clock, caps)
    refusals = [passes(await again.reserve(payer, TENTH, Usage())) for payer in (asked, other)]

    assert refusals == [False, False if caps.tokens_per_day else None]
    clock.now = NOON.replace(day=2, hour=0)
    assert await again.reserve(asked, TENTH, Usage()) is None


async def test_what_the_background_does_for_a_job_counts_for_the_job(tmp_path: Path) -> None:
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_job_per_day_usd=1.0))
    mine.pay("cron:daily", Usage(1, 1, 0.95))

    assert passes(await mine.reserve(Payer("telegram:1", job="daily", id="m"), TENTH, Usage())) is False


async def test_lines_that_are_damaged_lift_no_cap(tmp_path: Path) -> None:
    """Torn holds, holds of nonsense and bytes that are no text are passed over; what stands there counts."""
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=1.0))
    mine.record("cli:ada", "ada", Usage(1, 1, 0.6))
    await mine.aclose()
    path = tmp_path / "usage" / "2027-01-01.jsonl"
    hold = {"hold": "x", "at": NOON.isoformat(), "until": "never", "key": "k", "person": "p", "job": ""}
    with path.open("ab") as file:
        file.write(json.dumps({**hold, "spent": [1, 1, 5.0], "need": [1, 5.0]}).encode() + b"\n")
        file.write(b'\xff\x00\n[]\n{"hold":1}\n{"hold":"y","at":"2027')

    again = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=1.0))

    assert passes(await again.reserve(ADA, Need(1, 0.5), Usage())) is False
    assert await again.reserve(ADA, Need(1, 0.4), Usage()) is None


async def test_a_disk_that_refuses_holds_nothing_and_no_request_is_made(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text("in the way")
    mine = spending(tmp_path, Clock(NOON), Caps(cost_per_day_usd=1.0))

    with pytest.raises(StoreError):
        async with turn_meter(mine, ADA).request(Priced(), prompt("hello")):
            raise AssertionError


async def test_a_clock_that_leaps_finds_each_day_as_it_was(tmp_path: Path) -> None:
    """A day ahead and back: the day's money is spent as before, and no hold of the future stays."""
    clock = Clock(NOON)
    mine = spending(tmp_path, clock, Caps(cost_per_day_usd=1.0))
    mine.record("cli:ada", "ada", Usage(1, 1, 0.95))
    assert passes(await mine.reserve(ADA, TENTH, Usage())) is False

    for leap in (timedelta(days=3), timedelta(hours=3)):
        clock.now = NOON + leap
        assert await mine.reserve(ADA, Need(1, 0.04), Usage()) is None
    clock.now = NOON

    assert passes(await mine.reserve(BOB, TENTH, Usage())) is False
    assert await mine.reserve(BOB, Need(1, 0.05), Usage()) is None
    assert mine.today().usage.cost_usd == 0.95


async def test_vectors_are_held_for_while_they_are_asked_for(tmp_path: Path) -> None:
    """By a turn, and by what is no turn's; neither waits for others, and a refusal asks nothing."""
    mine = spending(tmp_path, Clock(NOON), Caps(tokens_per_day=100))
    words, text = WordEmbedder(), "x" * 200
    meter = turn_meter(mine, ADA)

    async with meter.embedding(words, [text]) as count:
        [during] = mine.shown() or ()
        with pytest.raises(NotNow):
            async with mine.embedding(Payer("cli:bob"), words, [text + text]):
                raise AssertionError("it may not be asked")
        with pytest.raises(OverCap):
            async with turn_meter(mine, BOB).embedding(words, [text + text]):
                raise AssertionError("it may not be asked")
        async with mine.embedding(Payer("cli:bob"), words, [text]) as counted:
            counted(Usage(prompt=30))
        count(Usage(prompt=20))
    mine.record("cli:ada", "ada", meter.usage, id_="m1")
    await mine.refresh()

    [after] = mine.shown() or ()
    assert (during["used"], during["reserved"]) == (0, 50)
    assert (after["used"], after["reserved"]) == (50, 0)
    assert mine.today().turns == 1


T = TypeVar("T")


class Later(AtOnce):
    """A disk that does a job when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def do() -> None:
            try:
                done.set_result(job())
            except StoreError as error:
                done.set_exception(error)

        self.jobs.append(do)
        return done


@pytest.mark.parametrize("again", [False, True])
async def test_whoever_asks_while_a_visit_fails_is_answered_by_the_next_one(
    tmp_path: Path, again: bool
) -> None:
    """By its refusal where the disk refuses again, and then nobody looks on by himself."""
    disk, in_the_way = Later(), tmp_path / "usage"
    caps = Caps(cost_per_day_usd=1.0)
    mine = Spending(tmp_path / "usage", disk=disk, clock=Clock(NOON), durable=True, caps=caps, held_s=HELD_S)
    in_the_way.write_text("in the way")
    mine.record("cli:bob", "bob", Usage(5, 5, 0.5))
    asking = asyncio.create_task(mine.reserve(Payer("cli:ada", "ada", id="m1"), Need(10, 0.1), Usage()))
    await asyncio.sleep(0)

    disk.jobs.pop()()
    if not again:
        in_the_way.unlink()

    [answer] = await asyncio.wait_for(asyncio.gather(asking, return_exceptions=True), 10)
    assert isinstance(answer, StoreError) if again else answer is None
    assert disk.jobs == []


async def test_vectors_beside_a_turn_count_for_the_person_and_the_job_that_ask(tmp_path: Path) -> None:
    """In one chat as in another; what nobody asked for counts for the chat alone."""
    caps = Caps(cost_per_person_per_day_usd=0.5, cost_per_job_per_day_usd=0.5)
    mine = spending(tmp_path, Clock(NOON), caps)
    for payer in (Payer("cli:a", "ada", "daily"), Payer("cli:b", "bob"), Payer("cli:a")):
        async with mine.embedding(payer, WordEmbedder(), ["x"]) as count:
            count(Usage(cost_usd=0.5))
    await mine.refresh()

    payers = (
        Payer("cli:z", "ada"),
        Payer("cli:z", "eve", "daily"),
        Payer("cli:z", "bob"),
        Payer("cli:a", "eve"),
    )
    reached = [mine.reached(payer) for payer in payers]
    assert [cap.subject if cap is not None else None for cap in reached] == [
        ("person", "ada"), ("job", "daily"), ("person", "bob"), None
    ]  # fmt: skip
