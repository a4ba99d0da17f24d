"""The jobs that wait: which may begin, in which order, and that no step looks at all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from session.background.due import Calm, Due
from session.background.job_files import BackgroundJob
from session.background.waiting import Waiting
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "operation", "The choice of the next background job stays fast with many waiting jobs and skips none."
)

MANY = 10_000


@dataclass
class Place:
    """Jobs that wait by a clock that is moved."""

    quiet_s: float = 0.0
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.calm = Calm(self.quiet_s, self.clock)
        self.waiting = Waiting(self.calm)

    def put(self, key: str, *, gives_way: bool = False, scope: str = "") -> BackgroundJob:
        job, due = BackgroundJob(key), self.calm.due(gives_way=gives_way)
        due.scope = scope
        self.waiting.put(job, due)
        return job

    def take(self, most: int = 4) -> list[str]:
        return [job.key for job in self.waiting.take(self.clock(), most)]


def test_they_begin_in_the_order_in_which_they_came() -> None:
    """As many as there are places for."""
    place = Place()
    for key in "abc":
        place.put(key)

    assert place.take(2) == ["a", "b"]
    assert place.take(2) == ["c"]
    assert place.take(2) == []


def test_of_one_scope_one_runs_and_the_others_follow_it() -> None:
    """Each when the one before has ended, however many wait, and whatever else begins meanwhile."""
    place = Place()
    jobs = {key: place.put(key, scope="team") for key in "abc"}
    other = place.put("x", scope="x")

    assert place.take() == ["a", "x"]
    place.waiting.done(other)
    assert place.take() == []
    place.waiting.done(jobs["a"])
    assert place.take() == ["b"]
    place.waiting.done(jobs["b"])
    assert place.take() == ["c"]


def test_whoever_is_let_go_of_holds_up_nobody() -> None:
    """It was the next of its scope, and had been called; the ones behind it are called instead."""
    place = Place()
    jobs = {key: place.put(key, scope="team") for key in "abc"}
    place.take()
    place.waiting.done(jobs["a"])
    place.waiting.forget(jobs["b"])

    assert place.take() == ["c"]
    assert [job in place.waiting for job in jobs.values()] == [False, False, True]
    assert [place.waiting.running(job) for job in jobs.values()] == [False, False, True]


def test_one_that_finds_another_scope_leaves_its_own_to_the_others() -> None:
    """A chat that has moved to another circle since writes elsewhere than it was known to."""
    place = Place()
    moved, left = place.put("a", scope="old"), place.put("b", scope="old")
    assert place.take() == ["a"]
    place.waiting[moved].scope = "new"
    place.waiting.done(moved)

    assert place.take() == ["b"]
    place.waiting.done(left)
    assert len(place.waiting) == 0


def test_one_that_gives_up_its_place_calls_the_others() -> None:
    """Those of the scope that it was known to write to, and of the one that it turned out to write to."""
    place = Place()
    moved, old, new = place.put("a", scope="old"), place.put("b", scope="old"), place.put("c", scope="new")
    assert place.take(1) == ["a"]
    assert place.take(1) == ["c"]
    place.waiting[moved].scope = "new"
    assert place.waiting.busy() == {"new"}
    assert place.waiting.busy(but=new) == {"new"}
    assert place.waiting.busy(but=moved) == {"new"}
    place.waiting[moved].at = place.clock() + timedelta(seconds=1)
    place.waiting.back(moved)

    assert place.take() == ["b"]
    place.clock.forward(1)
    assert place.take() == []
    place.waiting[new].at = place.clock() + timedelta(seconds=1)
    place.waiting.back(new)
    assert place.take() == ["a"]
    assert place.waiting.busy(but=moved) == {"old"}
    place.waiting.done(old)
    assert place.waiting.busy(but=moved) == set()


class Counted(BackgroundJob):
    """A job that counts how often one is looked up."""

    looked = 0

    def __hash__(self) -> int:
        Counted.looked += 1
        return super().__hash__()


def test_no_step_looks_at_all_that_wait() -> None:
    """An outage of the models leaves a job of each chat behind; each turn that ends puts one in."""
    place = Place()
    for number in range(MANY):
        place.waiting.put(Counted(f"chat:{number}"), place.calm.due(gives_way=True))
    for each in place.waiting.take(place.clock(), MANY):
        place.waiting[each].at = place.clock() + timedelta(seconds=10)
        place.waiting.back(each)
    Counted.looked = 0

    place.waiting.put(Counted("one more"), place.calm.due(gives_way=False))
    (job,) = place.waiting.take(place.clock(), 4)
    next_at = place.waiting.next_start(place.clock())
    place.waiting.done(job)

    assert next_at == place.clock() + timedelta(seconds=10)
    assert Counted.looked < 30


def test_no_step_looks_at_all_that_wait_for_one_scope() -> None:
    """All chats of a team may share one memory: each that ends calls one, and not all."""
    place = Place()
    for number in range(MANY):
        due = place.calm.due(gives_way=False)
        due.scope = "team"
        place.waiting.put(Counted(f"chat:{number}"), due)
    (job,) = place.waiting.take(place.clock(), 4)
    Counted.looked = 0
    for _ in range(10):
        place.waiting.done(job)
        (job,) = place.waiting.take(place.clock(), 4)

    assert Counted.looked < 300


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "urgent", "take", "done", "off", "scope", "forget", "turn", "forward"]),
        st.integers(0, 7),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS, st.sampled_from([0.0, 0.5]))
def test_whatever_happens_all_that_may_begin_does(steps: list[tuple[str, int]], quiet_s: float) -> None:
    """Beside a look at all of them: as many are taken, each of which may begin, and no scope has two.

    Those that are taken may be others where more may begin than there are places.
    """
    place = Place(quiet_s)
    waiting, clock = place.waiting, place.clock
    running: set[BackgroundJob] = set()

    def may_begin() -> list[tuple[BackgroundJob, Due]]:
        return [
            (job, due)
            for job in waiting
            if job not in running and place.calm.start_of(due := waiting[job]) <= clock()
        ]

    for step, number in steps:
        job = BackgroundJob(f"chat:{number}")
        if step in ("put", "urgent") and job not in waiting:
            waiting.put(job, place.calm.due(gives_way=step == "put"))
        elif step == "take":
            busy = {waiting[each].scope for each in running} - {""}
            free = [(each, due) for each, due in may_begin() if due.scope not in busy]
            scopes = {due.scope for _, due in free if due.scope}
            most = len([due for _, due in free if not due.scope]) + len(scopes)
            assert waiting.any_ready(clock()) or not free
            taken = waiting.take(clock(), number)
            assert len(taken) == min(number, most)
            assert {*taken} <= {each for each, _ in free}
            taken_scopes = [waiting[each].scope for each in taken if waiting[each].scope]
            assert len(taken_scopes) == len(set(taken_scopes))
            running.update(taken)
        elif step == "done" and job in running:
            running.discard(job)
            waiting.done(job)
        elif step == "off" and job in running:
            running.discard(job)
            waiting[job].at = clock() + timedelta(seconds=number % 3)
            waiting.back(job)
        elif step == "scope" and job in running:
            waiting[job].scope = "team" if number % 2 else "pair"
        elif step == "forget" and job in waiting and job not in running:
            waiting.forget(job)
        elif step == "turn":
            place.calm.disturb()
        elif step == "forward":
            clock.forward(number / 4)
        starts = [place.calm.start_of(due) for _, due in waiting.idle()]
        asked, later = waiting.next_start(clock()), [at for at in starts if at > clock()]
        if not waiting.any_ready(clock()):
            # Too early does no harm: who wakes asks again.
            assert (asked is not None) == bool(later)
            assert asked is None or clock() < asked <= min(later)
    assert (
        sum(1 for _ in waiting.idle())
        == len(waiting) - waiting.running_count()
        == len(waiting) - len(running)
    )
