"""Partitions are shared out evenly, and few of them move when a daemon comes or goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.queue.rabbitmq import roster as rosters
from gateway.queue.rabbitmq.beat import Beat, read_beat
from gateway.queue.rabbitmq.roster import (
    GONE_BEATS,
    LATE_BEATS,
    SETTLED_BEATS,
    Roster,
    Standing,
    heirs,
    owners,
)
from tests.support.guarantee import guarantee

NAMES = st.text("abcdef0123456789", min_size=1, max_size=16)
PARTITIONS = st.integers(1, 64)


@given(PARTITIONS, st.sets(NAMES, min_size=1, max_size=12))
def test_no_daemon_has_two_more_than_another(partitions: int, daemons: set[str]) -> None:
    """Each partition has one owner, however the daemons are listed, and the loads differ by one at most."""
    given_out = owners(partitions, daemons)
    load = Counter(given_out)
    assert len(given_out) == partitions
    assert given_out == owners(partitions, sorted(daemons, reverse=True))
    counts = [load[daemon] for daemon in daemons]
    assert max(counts) - min(counts) <= 1


@given(PARTITIONS, st.sets(NAMES, min_size=2, max_size=8))
def test_the_heir_is_the_owner_once_the_owner_is_gone(partitions: int, daemons: set[str]) -> None:
    """When a daemon dies its partitions are where they belong at once: nothing of it moves a second time."""
    before, next_ones = owners(partitions, daemons), heirs(partitions, daemons)
    for gone in daemons:
        after = owners(partitions, daemons - {gone})
        for partition in range(partitions):
            if before[partition] == gone:
                assert next_ones[partition] == after[partition] != gone


def test_nobody_inherits_from_the_only_daemon() -> None:
    """Without daemons nothing can be shared out, and one alone has no heir."""
    assert set(heirs(4, ["a"])) == {""}
    with pytest.raises(ValueError, match="no daemon"):
        owners(4, [])


def test_versions_that_run_beside_each_other_share_out_alike() -> None:
    """Daemons are renewed one by one: what an earlier one says of who has what has to hold for all."""
    assert "".join(owners(16, "abc")) == "ccaacbcbaabbccab"
    assert "".join(heirs(16, "abc")) == "babbacaabcaaabbc"


def test_a_beat_that_tells_nothing_new_shares_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each daemon hears all others each second, and then looks all partitions through."""
    asked = list[str]()

    def told(name: str, share: Callable[..., Sequence[str]]) -> Callable[..., Sequence[str]]:
        return lambda *words: asked.append(name) or share(*words)

    monkeypatch.setattr(rosters, "owners", told("owners", owners))
    monkeypatch.setattr(rosters, "heirs", told("heirs", heirs))
    me = Roster("a", 64)
    for number in range(1, 6):
        for daemon in "abc":
            me.hear(Beat(daemon, 64, number))
        for partition in range(64):
            me.step(partition, None)
    assert asked == ["owners", "heirs"]

    me.hear(Beat("c", 64, 6, gone=True))
    me.hear(Beat("b", 32, 6))
    assert {me.owner(partition) for partition in range(64)} == {"a"}


@pytest.mark.parametrize("partitions", [16, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_partitions_move_when_a_daemon_joins(partitions: int, count: int) -> None:
    """On average no more than half as many again as the newcomer's share, which is the least that can."""
    moved = 0
    draws = 30
    for draw in range(draws):
        daemons = [f"{draw}-{number}" for number in range(count)]
        before, after = owners(partitions, daemons), owners(partitions, [*daemons, f"{draw}-new"])
        moved += sum(old != new for old, new in zip(before, after, strict=True))
    assert moved / draws <= 1.5 * partitions / (count + 1)


# ── beats ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.builds(
        Beat,
        NAMES,
        PARTITIONS,
        st.integers(1),
        lines=st.dictionaries(st.integers(0, 63), st.integers(1)),
        behind=st.frozensets(st.integers(0, 63)),
        alone=st.frozensets(st.integers(0, 63)),
        asks=st.booleans(),
        gone=st.booleans(),
        place=st.text(),
    )
)
def test_beat_reads_back(beat: Beat) -> None:
    """What one daemon says another understands."""
    assert read_beat(beat.to_bytes()) == beat


@given(st.one_of(st.binary(), st.sampled_from([b"{}", b"[]", b"1", b'{"v":2}', b'{"v":1,"daemon":"a"}'])))
def test_foreign_beat_is_none(body: bytes) -> None:
    """What is no beat of this version is passed over."""
    assert read_beat(body) is None


# ── who stands in which line ──────────────────────────────────────────────────────────────────────────────


class Gateway:
    """Daemons that hear each other, and the lines of the broker: who stands first in a line has its queue.

    Each daemon acts by its roster alone, in any order; ``beat`` lets each one hear all beats.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.rosters: dict[str, Roster] = {}
        self.lines: list[list[str]] = [[] for _ in range(partitions)]
        self.standings: dict[tuple[str, int], tuple[int, Standing]] = {}
        self.openings = 0
        self.moves = 0

    def join(self, name: str) -> None:
        self.rosters[name] = Roster(name, self.partitions)

    def kill(self, name: str) -> None:
        del self.rosters[name]
        for partition, line in enumerate(self.lines):
            self._leave(name, partition, line)

    def _leave(self, name: str, partition: int, line: list[str]) -> None:
        if name in line:
            line.remove(name)
            del self.standings[name, partition]

    def beat(self) -> None:
        beats = [self.beat_of(name) for name in self.rosters]
        for name, roster in self.rosters.items():
            for beat in beats:
                roster.hear(beat, ticks=beat.daemon == name)

    def beat_of(self, name: str) -> Beat:
        own = {number: standing for (who, number), standing in self.standings.items() if who == name}
        behind = {
            number
            for number, (_, standing) in own.items()
            if standing.behind and standing.behind == self.rosters[name].behind_owner(number)
        }
        lines = {number: opening for number, (opening, _) in own.items()}
        return Beat(name, self.partitions, 1, lines=lines, behind=frozenset(behind))

    def act(self, name: str) -> None:
        roster = self.rosters[name]
        for partition, line in enumerate(self.lines):
            standing = self.standings.get((name, partition))
            match roster.step(partition, standing[1] if standing else None):
                case "enter":
                    self.openings += 1
                    ahead = None if roster.owner(partition) == name else roster.behind_owner(partition)
                    line.append(name)
                    self.standings[name, partition] = self.openings, Standing(ahead)
                # Whoever has letters waits for those who stand in front of the owner.
                case "leave" if roster.settled and (line[0] != name or not roster.in_front(partition)):
                    self.moves += line[0] == name
                    self._leave(name, partition, line)

    def round(self, order: list[str]) -> None:
        self.beat()
        for name in order:
            if name in self.rosters:
                self.act(name)

    def until_still(self, order: list[str]) -> int:
        """Return after how many beats nothing changes any more; 30 at most."""
        still = 0
        for beats in range(30):
            before = [list(line) for line in self.lines]
            self.round(order)
            still = still + 1 if before == self.lines else 0
            if still > GONE_BEATS + SETTLED_BEATS + LATE_BEATS:
                return beats - still
        raise AssertionError("it never rests")

    def check(self) -> None:
        """Each queue is its owner's, with its heir behind and nobody else."""
        live = list(self.rosters)
        expected = [
            [owner, heir] if heir else [owner]
            for owner, heir in zip(owners(self.partitions, live), heirs(self.partitions, live), strict=True)
        ]
        assert self.lines == expected


@guarantee("writer", "Each partition settles with one owner and one successor, whoever joins or dies.")
@given(st.data(), st.integers(1, 12), st.integers(1, 6))
def test_lines_come_to_rest(data: st.DataObject, partitions: int, count: int) -> None:
    """Whoever joins or dies, in whatever order all act: soon each queue is its owner's, and stays so."""
    gateway = Gateway(partitions)
    names = [f"d{number}" for number in range(count + 2)]
    order = data.draw(st.permutations(names))
    for name in names[:count]:
        gateway.join(name)
        if data.draw(st.booleans()):
            gateway.round(order)
    assert gateway.until_still(order) <= 12
    gateway.check()

    gateway.join(names[count])
    assert gateway.until_still(order) <= 12
    gateway.check()

    before = owners(partitions, list(gateway.rosters))
    gateway.moves = 0
    gone = data.draw(st.sampled_from(sorted(gateway.rosters)))
    gateway.kill(gone)
    # The broker hands the queues of the dead one on by itself, to whom they belong from now on.
    after = owners(partitions, list(gateway.rosters))
    assert all(
        line[0] == after[number] for number, line in enumerate(gateway.lines) if before[number] == gone
    )
    assert gateway.until_still(order) <= 12
    gateway.check()
    others_moved = sum(old != new for old, new in zip(before, after, strict=True) if old != gone)
    assert gateway.moves == others_moved


def test_one_that_is_slow_keeps_its_partitions() -> None:
    """A daemon that is taken for dead and heard again has all that it had, and nothing was moved."""
    gateway = Gateway(8)
    for name in ("a", "b"):
        gateway.join(name)
    gateway.until_still(["a", "b"])
    gateway.moves = 0
    roster = gateway.rosters["a"]
    for _ in range(GONE_BEATS + SETTLED_BEATS + 1):
        roster.hear(gateway.beat_of("a"), ticks=True)
        gateway.act("a")
    assert set(roster.daemons) == {"a"}
    gateway.until_still(["a", "b"])
    gateway.check()
    assert gateway.moves == 0


def test_whoever_hears_nothing_takes_nobody_for_dead() -> None:
    """Time is counted in beats that came back: a frozen daemon that wakes knows all whom it knew."""
    roster = Roster("a", 4)
    for name in ("a", "b"):
        roster.hear(Beat(name, 4, 1), ticks=name == "a")
    for _ in range(GONE_BEATS - 1):
        roster.hear(Beat("a", 4, 2), ticks=True)
    assert set(roster.daemons) == {"a", "b"}
    assert not roster.hear(Beat("a", 4, 3))
    assert roster.hear(Beat("a", 4, 4), ticks=True)
    assert set(roster.daemons) == {"a"}


def test_another_partition_count_takes_no_part() -> None:
    """A daemon that cuts the slots in another way has other queues."""
    roster = Roster("a", 4)
    roster.hear(Beat("b", 8, 1))
    assert set(roster.daemons) == {"a"}
    assert set(roster.beats) == {"b"}
