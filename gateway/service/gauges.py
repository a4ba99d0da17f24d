"""How a gateway stands now, as metrics: lanes, queues, parts, limits, background, what waits for people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from platform import python_version
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import durable
from durable import SYNC_BOUNDS_S, sync_counts
from gateway.app.metrics import PREFIX
from gateway.app.status import own_version, readiness_of, with_letters
from gateway.errors import MailboxDown
from gateway.queue.mailbox import Depth
from gateway.workers.merging import merged
from session.disk.threads import start_thread
from session.errors import SessionError
from session.subagents.records import shown as subagents_shown
from session.transcript.key import SLOTS, slot_of
from session.transcript.line import read_time

if TYPE_CHECKING:
    from gateway.app.application import Application
    from gateway.app.wiring_session import SessionServices
    from gateway.dispatch.lanes import Lanes

T = TypeVar("T", str, datetime)
_AT_CHARS = len("2026-01-01T00:00:00.000000+00:00")
# Prometheus gives up a scrape after ten seconds.
DEPTHS_WITHIN_S = 2.0


async def metrics(application: Application) -> bytes:
    """Write how everything stands, and what was counted, in Prometheus' text format.

    What cannot be looked at is left out; what a worker counted that does not answer is as it said it last.
    """
    workers = application.workers
    in_hand = await workers.count() if workers is not None else []
    depths = await _depths(application, in_hand)
    services = application.services
    waiting = await start_thread(lambda: _waiting(application), name="metrics") if services else None
    ready, parts = readiness_of(application)
    built = GaugeMetricFamily(
        f"{PREFIX}_build_info", "Version and role; always 1.", labels=("version", "python", "role")
    )
    built.add_metric((own_version(), python_version(), application.role), 1)
    families: list[Metric] = [built, _gauge("ready", "1 if queue and dispatcher are up.", ready)]
    families += [*_parts(parts), *_queues(depths)]
    if waiting is not None:
        families += [
            _gauge("approvals_waiting", "Tool calls that wait for an approval.", waiting[0]),
            _gauge("subagents_working", "Subagents that are running or waiting.", waiting[1]),
        ]
    families += await families_of_process(application)
    if workers is not None:
        families.append(_gauge("workers", "Worker processes that are running.", len(workers.standings())))
        families = merged(families, sorted(workers.counted.items()), [workers.past])
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


async def families_of_process(application: Application) -> list[Metric]:
    """Gather what each process of a gateway counts for itself."""
    families = list[Metric](_process(application))
    if application.worker is not None:
        families += _lanes(application.worker.lanes, application.settings.broker.partitions)
    if application.services is not None:
        families += _session(application.services, await _caps(application.services))
    if application.metrics is not None:
        families += application.metrics.registry.collect()
    return families


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _depths(application: Application, in_hand: Iterable[int]) -> Mapping[str, Depth]:
    try:
        async with asyncio.timeout(DEPTHS_WITHIN_S):
            depths = await application.mailbox.depths(application.replied.names(), recent=True)
            return with_letters(depths, sum(in_hand))
    except (MailboxDown, TimeoutError):
        return {}


def _waiting(application: Application) -> tuple[int, int] | None:
    """Count the approvals and the subagents that are open; None where their files cannot be read."""
    assert application.services is not None
    try:
        approvals = application.services.answers.files.waiting()
        return len(approvals), len(subagents_shown(application.settings.state))
    except SessionError:
        return None


def _process(application: Application) -> Iterator[Metric]:
    counts, sum_s = sync_counts()
    bounds = [*(str(float(bound)) for bound in SYNC_BOUNDS_S), "+Inf"]
    buckets = [(bound, sum(counts[: at + 1])) for at, bound in enumerate(bounds)]
    yield HistogramMetricFamily(f"{PREFIX}_fsync_seconds", "Duration of disk syncs.", buckets, sum_s)
    held = application.mailbox.in_memory()
    yield _gauge("held_letters", "Messages held in memory by this process.", held.letters)
    yield _gauge("held_bytes", "Size of the messages held in memory.", held.bytes)


def _parts(parts: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    up = GaugeMetricFamily(f"{PREFIX}_part_up", "1 if a part of the gateway is up.", labels=("part",))
    trips = GaugeMetricFamily(
        f"{PREFIX}_last_round_trip_seconds",
        "Seconds since a platform last answered.",
        labels=("channel",),
    )
    now = durable.now()
    for name, part in parts.items():
        up.add_metric((name,), part["up"])
        if (at := read_time(part.get("last_round_trip"))) is not None:
            trips.add_metric((name,), max((now - at).total_seconds(), 0.0))
    yield up
    yield trips


def _queues(depths: Mapping[str, Depth]) -> Iterator[Metric]:
    count = GaugeMetricFamily(
        f"{PREFIX}_queue_letters", "Messages waiting or in progress, by queue.", labels=("box",)
    )
    oldest = GaugeMetricFamily(
        f"{PREFIX}_queue_oldest_seconds",
        "Age of the oldest message, if the queue reports it.",
        labels=("box",),
    )
    now = durable.now()
    for box, depth in depths.items():
        if box == "parked":
            yield _gauge("parked_letters", "Parked messages.", depth.count)
            continue
        count.add_metric((box,), depth.count)
        if depth.oldest_at is not None:
            oldest.add_metric((box,), max((now - depth.oldest_at).total_seconds(), 0.0))
    yield count
    yield oldest


def _lanes(lanes: Lanes, partitions: int) -> Iterator[Metric]:
    """Count the lines of chats; of each partition the age of the message that waits or runs longest."""
    letters = running = asking = count = 0
    accepted, queued = list[tuple[str, str]](), list[tuple[datetime, str]]()
    for lane in lanes:
        if not (entries := lane.entries):
            continue
        first = entries[0]
        count += 1
        letters += len(entries)
        if first.asking:
            asking += 1
        elif lane.running is not None:
            running += 1
        at = first.inbound.received_at
        if at is not None and len(at) == _AT_CHARS and at.endswith("+00:00"):
            accepted.append((at, lane.key))
        else:
            queued.append((first.queued_at, lane.key))
    found = GaugeMetricFamily(
        f"{PREFIX}_lanes", "Chats with unanswered messages, by the state of the first one.", labels=("state",)
    )
    for state, number in (("running", running), ("waiting", count - running - asking), ("asking", asking)):
        found.add_metric((state,), number)
    yield found
    yield _gauge("lane_letters", "Messages waiting for their turn in a chat.", letters)
    # In this spelling of times, ours, the earlier is the lesser text: ten thousand of them are not parsed.
    oldest = [(partition, read_time(at)) for partition, at in _oldest(accepted, partitions)]
    yield _ages([*oldest, *_oldest(queued, partitions)], partitions)


def _oldest(found: list[tuple[T, str]], partitions: int) -> Iterator[tuple[int, T]]:
    """Yield the least of each partition, as far as there is one, of what was found by key.

    Chats lie nearly in the order of their times, so that sorting is quick; few keys are hashed.
    """
    found.sort()
    seen = set[int]()
    for least, key in found:
        if (partition := slot_of(key) * partitions // SLOTS) not in seen:
            seen.add(partition)
            yield partition, least
            if len(seen) == partitions:
                return


def _ages(oldest: Iterable[tuple[int, datetime | None]], partitions: int) -> Metric:
    ages = GaugeMetricFamily(
        f"{PREFIX}_partition_oldest_seconds", "Age of the oldest unanswered message.", labels=("partition",)
    )
    now = durable.now()
    by_partition = dict.fromkeys(range(partitions), 0.0)
    for partition, at in oldest:
        # Anybody may publish a letter with a time that is none.
        if at is not None:
            by_partition[partition] = max(by_partition[partition], (now - at).total_seconds())
    for partition, age in by_partition.items():
        ages.add_metric((f"{partition:02d}",), age)
    return ages


async def _caps(services: SessionServices) -> list[dict[str, Any]]:
    try:
        return await services.limits_today() or []
    except SessionError:
        return []


def _session(services: SessionServices, caps: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    hits, misses = services.store.cache_use()
    opened = CounterMetricFamily(
        f"{PREFIX}_sessions_opened", "Conversations opened, by cache hit or miss.", labels=("cache",)
    )
    opened.add_metric(("hit",), hits)
    opened.add_metric(("miss",), misses)
    yield opened
    yield _gauge("cache_bytes", "Memory used by cached conversations.", services.store.cached_bytes())
    shown = services.jobs.shown()
    jobs = GaugeMetricFamily(f"{PREFIX}_background_jobs", "Background jobs.", labels=("state",))
    for state in ("waiting", "running", "facts_waiting"):
        jobs.add_metric((state,), shown[state])
    yield jobs
    yield from _limits(caps, shown["budget"])


def _limits(caps: Iterable[Mapping[str, Any]], budget: Mapping[str, Any]) -> Iterator[Metric]:
    """Show each limit and what is left of it; of those on chats and people the least that anybody has."""
    least: dict[str, tuple[float, float]] = {}
    for row in caps:
        now = (float(row["left"]), float(row["of"]))
        least[row["limit"]] = min(least.get(row["limit"], now), now)
    for name, used, of in (
        ("background_calls_per_hour", "calls_last_hour", "per_hour"),
        ("background_calls_per_day", "calls_last_day", "per_day"),
    ):
        if budget[of]:
            least[name] = (float(max(budget[of] - budget[used], 0)), float(budget[of]))
    words = "Remainder of a limit, in dollars, tokens or calls."
    left = GaugeMetricFamily(f"{PREFIX}_limit_left", words, labels=("limit",))
    whole = GaugeMetricFamily(f"{PREFIX}_limit", "Value of a limit.", labels=("limit",))
    for name, (rest, of_all) in sorted(least.items()):
        left.add_metric((name,), rest)
        whole.add_metric((name,), of_all)
    yield left
    yield whole


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", words, value=float(value))
