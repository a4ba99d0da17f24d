"""What several processes count, as one: shown by the gateway as if it had done all the work itself.

A counter or a histogram is the sum over all processes, those among it that have ended: a scrape in which a
worker is gone must not show less than the one before. A gauge is the sum of what each holds, or the oldest,
least or worst of it. What the system says of a process stands under a label
``worker`` beside the gateway's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from prometheus_client.core import Metric

# A family as it goes over the line: name, words, type, samples of (name, labels, value).
Family = list[Any]
_PROCESS: Final = ("process", "python")
# Gauges of which the sum says nothing; all others are added up.
_GREATEST: Final = frozenset({"chat_gateway_partition_oldest_seconds", "chat_gateway_limit"})
_LEAST: Final = frozenset({"chat_gateway_limit_left"})


def packed(families: Iterable[Metric]) -> list[Family]:
    """Return families as they go over the line."""
    return [
        [each.name, each.documentation, each.type, [[s.name, s.labels, s.value] for s in each.samples]]
        for each in families
    ]


def lasting(families: Iterable[Family]) -> list[Family]:
    """Return what an ended process still counts for: what it counted, not what it held."""
    return [each for each in families if each[2] in ("counter", "histogram") and not _of_process(each[0])]


def merged(
    own: Iterable[Metric],
    workers: Sequence[tuple[int, Sequence[Family]]],
    past: Sequence[Sequence[Family]] = (),
) -> list[Metric]:
    """Join the families of a gateway with those of its workers, by their numbers, and of ended ones."""
    found: dict[str, _Sum] = {}
    for each in own:
        found[each.name] = _Sum(each)
    for number, families in [*workers, *((0, each) for each in past)]:
        for name, words, kind, samples in families:
            if name not in found:
                found[name] = _Sum(Metric(name, words, kind))
            found[name].add(samples, worker=str(number) if _of_process(name) else "")
    return [each.metric() for each in found.values()]


def _of_process(name: str) -> bool:
    return name.partition("_")[0] in _PROCESS


class _Sum:
    """One family, sample by sample."""

    def __init__(self, first: Metric) -> None:
        self._family = first
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in first.samples:
            self._values[sample.name, tuple(sample.labels.items())] = sample.value

    def add(self, samples: Iterable[tuple[str, dict[str, str], float]], *, worker: str) -> None:
        name = self._family.name
        for sample, labels, value in samples:
            if sample.endswith("_created"):
                continue
            under = tuple({**labels, **({"worker": worker} if worker else {})}.items())
            known = self._values.get((sample, under))
            if known is None:
                self._values[sample, under] = value
            elif name in _GREATEST:
                self._values[sample, under] = max(known, value)
            elif name in _LEAST:
                self._values[sample, under] = min(known, value)
            else:
                self._values[sample, under] = known + value

    def metric(self) -> Metric:
        joined = Metric(self._family.name, self._family.documentation, self._family.type)
        for (sample, labels), value in self._values.items():
            joined.add_sample(sample, dict(labels), value)
        return joined
