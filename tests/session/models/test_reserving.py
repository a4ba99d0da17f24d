"""What a request may cost is held before it is made, over processes that die, and settled by what it cost."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from durable import StateWriter, serve
from gateway.workers import process
from session.errors import NotNow, OverCap, StoreError
from session.models.caps import Caps, Refused
from session.models.model import Echo, Need, Payer, Prompt, Usage
from session.models.spending import Meter, Spending
from session.store.state import StoreState, workspace_state
from tests.contracts.models import Script, WordEmbedder, prompt
from tests.session.spending_place import MemoryRows, spending_in
from tests.session.spending_victim import CAPS
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


def spending(rows: MemoryRows, clock: Clock, caps: Caps) -> Spending:
    return spending_in(rows, clock=clock, caps=caps)


@pytest.fixture
def rows() -> MemoryRows:
    return MemoryRows()


@asynccontextmanager
async def victims(
    state: StateWriter, counts: Sequence[int]
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Start workers that are ready to hold so many requests each; kill them in the end."""
    pipe = asyncio.subprocess.PIPE
    started, serving = [], []
    for number, count in enumerate(counts):
        ours, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", "tests.session.spending_victim", str(theirs.fileno()))
            process = await asyncio.create_subprocess_exec(
                *command,
                f"v{number}",
                str(count),
                cwd=ROOT,
                stdin=pipe,
                stdout=pipe,
                pass_fds=[theirs.fileno()],
            )
        started.append(process)
        serving.append(asyncio.create_task(serve(ours, state, changed)))
    try:
        for process in started:
            assert await line_of(process) == "ready"
        yield started
    finally:
        for process in started:
            await killed(process)
        await asyncio.gather(*serving)


async def changed(key: str, cleared: bool) -> None:
    raise AssertionError(key)


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


async def test_workers_that_ask_at_once_never_pass_the_last_dollar_together(tmp_path: Path) -> None:
    """Of 24 requests in three processes, each for a tenth of the day, ten are made."""
    async with workspace_state(tmp_path / "state").opened() as state, victims(state, [8, 8, 8]) as processes:
        granted = await asyncio.gather(*map(held_by, processes))

    assert sum(granted) == 10


async def test_what_a_killed_worker_reserved_is_free_once_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process reserved stays so."""
    monkeypatch.setattr(process, "MODULE", "tests.session.spending_victim")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with asyncio.timeout(60), workspace_state(tmp_path / "state").opened() as state:
        mine = Spending(state, clock=lambda: datetime.now(UTC), caps=CAPS)
        assert await mine.reserve(ADA, Need(10, 0.05), Usage()) is None
        worker = process.WorkerProcess({}, state, changed=lambda: None)
        running = asyncio.create_task(worker.run(1, []))
        while await reserved(mine) < 0.95:
            await asyncio.sleep(0.01)
        assert passes(await mine.reserve(BOB, Need(10, 0.2), Usage())) is True
        worker.kill()
        await running

        assert await reserved(mine) == 0.05
        assert await mine.reserve(BOB, Need(10, 0.2), Usage()) is None


async def reserved(mine: Spending) -> float:
    [row] = await mine.shown() or ()
    return float(row["reserved"])


async def test_the_next_start_frees_what_a_crash_left_reserved_and_keeps_what_was_spent(
    tmp_path: Path,
) -> None:
    """The turn that crashed is done again: its requests count once, those before the crash as well."""
    first = StoreState(tmp_path / "state")
    await first.open()
    mine = Spending(first, clock=Clock(NOON), caps=CAPS)
    assert await mine.reserve(ADA, Need(10, 0.5), Usage(5, 5, 0.25)) is None
    await first.aclose()

    again = StoreState(tmp_path / "state")
    await again.open()
    mine = Spending(again, clock=Clock(NOON), caps=CAPS)
    [left] = await mine.shown() or ()
    assert passes(await mine.reserve(BOB, Need(10, 0.8), Usage())) is False
    assert await mine.reserve(ADA, Need(10, 0.5), Usage(5, 5, 0.25)) is None
    mine.settle(ADA, Usage(5, 5, 0.5))
    mine.record(ADA, Usage(5, 5, 0.5))
    [after] = await mine.shown() or ()
    await again.aclose()

    assert (left["used"], left["reserved"]) == (0.25, 0)
    assert (after["used"], after["reserved"]) == (0.5, 0)


async def test_a_turn_holds_its_estimate_then_what_it_cost(rows: MemoryRows) -> None:
    """Another one waits where only requests under way are in its way, and is refused by what is spent."""
    mine = spending(rows, Clock(NOON), Caps(cost_per_day_usd=1.0))

    assert await mine.reserve(ADA, Need(10, 0.9), Usage()) is None
    assert passes(await mine.reserve(BOB, Need(10, 0.2), Usage())) is True
    mine.settle(ADA, Usage(5, 5, 0.5))
    assert await mine.reserve(BOB, Need(10, 0.2), Usage()) is None
    assert passes(await mine.reserve(ADA, Need(10, 0.4), Usage(5, 5, 0.5))) is True
    mine.settle(BOB, Usage(5, 5, 0.2))

    assert passes(await mine.reserve(ADA, Need(10, 0.4), Usage(5, 5, 0.5))) is False
    mine.record(BOB, Usage(5, 5, 0.1))
    assert await mine.reserve(ADA, Need(10, 0.4), Usage(5, 5, 0.5)) is None


async def test_a_meter_waits_for_room_and_goes_on_when_there_is_some(rows: MemoryRows) -> None:
    """The one before it cost less than it might have; nothing of either is held in the end."""
    mine = spending(rows, Clock(NOON), Caps(cost_per_day_usd=0.5))
    first, second = mine.meter(ADA), mine.meter(BOB)

    async def ask() -> None:
        async with second.request(Priced(), prompt("hello")):
            second.count(Usage(1, 1, 0.1))

    async with first.request(Priced(), prompt("hello")):
        waiting = asyncio.create_task(ask())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        first.count(Usage(1, 1, 0.05))
    await asyncio.wait_for(waiting, 10)

    [row] = await mine.shown() or ()
    assert (row["used"], row["reserved"], row["left"]) == (0.15, 0, 0.35)


async def test_a_request_that_is_given_up_holds_nothing(rows: MemoryRows) -> None:
    """Cancelled while it asks, while it waits for room and while it runs."""
    mine = spending(rows, Clock(NOON), Caps(cost_per_day_usd=0.5))
    for rest in (0.0, 0.02):
        meters = [mine.meter(payer) for payer in (ADA, BOB)]
        tasks = [asyncio.create_task(for_ever(meter)) for meter in meters]
        await asyncio.sleep(rest)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        [row] = await mine.shown() or ()
        assert (row["used"], row["reserved"]) == (0, 0)


async def for_ever(meter: Meter) -> None:
    async with meter.request(Priced(), prompt("hello")):
        await asyncio.Event().wait()


async def test_without_a_price_tokens_alone_are_held_and_that_is_said_once(rows: MemoryRows) -> None:
    caps = Caps(cost_per_day_usd=1.0, tokens_per_day=100)
    mine = spending(rows, Clock(NOON), caps)
    meter = mine.meter(ADA)

    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            async with meter.request(Script(), prompt("x" * 40, max_tokens=50)):
                cost, tokens = await mine.shown() or ()
                assert (cost["reserved"], tokens["reserved"]) == (0, 60)
        with pytest.raises(OverCap) as caught:
            async with meter.request(Script(), prompt("x" * 400, max_tokens=50)):
                raise AssertionError

    assert [line["event"] for line in logs] == ["usage.no_price", "usage.limit_reached"]
    assert (caught.value.name, caught.value.until) == ("tokens_per_day", NOON.replace(day=2, hour=0))


async def test_without_a_cap_nothing_is_held_or_written(rows: MemoryRows) -> None:
    mine = spending(rows, Clock(NOON), Caps())

    async with mine.meter(ADA).request(Priced(), prompt("hello")):
        pass
    async with mine.request("cli:ada", Priced(), prompt("hello")):
        pass
    assert await mine.shown() is None
    # The built-in model costs nothing, whatever the cap.
    mine = spending(rows, Clock(NOON), Caps(cost_per_day_usd=1.0))
    async with mine.meter(ADA).request(Echo(), prompt("hello")):
        pass

    assert rows.file.execute("SELECT count(*) FROM reservations").fetchone() == (0,)


async def test_a_call_of_the_background_is_put_off_until_there_is_room(rows: MemoryRows) -> None:
    """Until the next day where the money is spent, for a moment where it is only held."""
    clock = Clock(NOON)
    mine = spending(rows, clock, Caps(cost_per_chat_per_day_usd=1.0))

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
async def test_each_cap_counts_what_is_its_own(rows: MemoryRows, caps: Caps, row: Payer) -> None:
    """Also after a restart, and until midnight UTC alone; what others spend counts for the day alone."""
    clock = Clock(NOON)
    mine = spending(rows, clock, caps)
    asked = Payer("cli:ada", "ada", "daily", "m1")
    other = Payer("cli:zoe", "zoe", "weekly", "m2")
    mine.record(row, Usage(90, 5, 0.95))

    again = spending(rows, clock, caps)
    refusals = [passes(await again.reserve(payer, TENTH, Usage())) for payer in (asked, other)]

    assert refusals == [False, False if caps.tokens_per_day else None]
    clock.now = NOON.replace(day=2, hour=0)
    assert await again.reserve(asked, TENTH, Usage()) is None


async def test_what_the_background_does_for_a_job_counts_for_the_job(rows: MemoryRows) -> None:
    mine = spending(rows, Clock(NOON), Caps(cost_per_job_per_day_usd=1.0))
    mine.record(Payer("cron:daily"), Usage(1, 1, 0.95), turn=False)

    assert passes(await mine.reserve(Payer("telegram:1", job="daily", id="m"), TENTH, Usage())) is False


async def test_a_disk_that_refuses_holds_nothing_and_no_request_is_made(rows: MemoryRows) -> None:
    rows.refuses = True
    mine = spending(rows, Clock(NOON), Caps(cost_per_day_usd=1.0))

    with pytest.raises(StoreError):
        async with mine.meter(ADA).request(Priced(), prompt("hello")):
            raise AssertionError


async def test_a_clock_that_leaps_finds_each_day_as_it_was(rows: MemoryRows) -> None:
    """A day ahead and back: the day's money is spent as before, and what another day reserved is no part."""
    clock = Clock(NOON)
    mine = spending(rows, clock, Caps(cost_per_day_usd=1.0))
    mine.record(Payer("cli:ada", "ada"), Usage(1, 1, 0.95))
    assert passes(await mine.reserve(ADA, TENTH, Usage())) is False

    for leap in (timedelta(days=3), timedelta(hours=3)):
        clock.now = NOON + leap
        assert await mine.reserve(ADA, Need(1, 0.04), Usage()) is None
    mine.settle(ADA, Usage())
    clock.now = NOON

    assert passes(await mine.reserve(BOB, TENTH, Usage())) is False
    assert await mine.reserve(BOB, Need(1, 0.05), Usage()) is None
    assert (await mine.today()).usage.cost_usd == 0.95


async def test_vectors_are_held_for_while_they_are_asked_for(rows: MemoryRows) -> None:
    """By a turn, and by what is no turn's; neither waits for others, and a refusal asks nothing."""
    mine = spending(rows, Clock(NOON), Caps(tokens_per_day=100))
    words, text = WordEmbedder(), "x" * 200
    meter = mine.meter(ADA)

    async with meter.embedding(words, [text]) as count:
        [during] = await mine.shown() or ()
        with pytest.raises(NotNow):
            async with mine.embedding(Payer("cli:bob"), words, [text + text]):
                raise AssertionError("it may not be asked")
        with pytest.raises(OverCap):
            async with mine.meter(BOB).embedding(words, [text + text]):
                raise AssertionError("it may not be asked")
        async with mine.embedding(Payer("cli:bob"), words, [text]) as counted:
            counted(Usage(prompt=30))
        count(Usage(prompt=20))
    mine.record(ADA, meter.usage)

    [after] = await mine.shown() or ()
    assert (during["used"], during["reserved"]) == (0, 50)
    assert (after["used"], after["reserved"]) == (50, 0)
    assert (await mine.today()).turns == 1


async def test_vectors_beside_a_turn_count_for_the_person_and_the_job_that_ask(rows: MemoryRows) -> None:
    """In one chat as in another; what nobody asked for counts for the chat alone."""
    caps = Caps(cost_per_person_per_day_usd=0.5, cost_per_job_per_day_usd=0.5)
    mine = spending(rows, Clock(NOON), caps)
    for payer in (Payer("cli:a", "ada", "daily"), Payer("cli:b", "bob"), Payer("cli:a")):
        async with mine.embedding(payer, WordEmbedder(), ["x"]) as count:
            count(Usage(cost_usd=0.5))

    payers = (
        Payer("cli:z", "ada"),
        Payer("cli:z", "eve", "daily"),
        Payer("cli:z", "bob"),
        Payer("cli:a", "eve"),
    )
    reached = [await mine.reached(payer) for payer in payers]
    assert [cap.subject if cap is not None else None for cap in reached] == [
        ("person", "ada"), ("job", "daily"), ("person", "bob"), None
    ]  # fmt: skip
