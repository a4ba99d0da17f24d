"""What a benchmark says: rows of ratios, a table of them, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("aio-pika", "aiormq", "orjson", "litellm", "pydantic", "structlog", "uvloop")


@dataclass(frozen=True)
class Row:
    """One figure: ours beside a peer's or a limit, and whether their ratio is as wanted.

    Args:
        name: which figure.
        ours: what was measured here, in ``unit``.
        peer: the same of the peer; or the raw limit.
        unit: of both.
        against: who the peer is, or what the limit.
        ratio: the number that is judged.
        at_least: the ratio must reach it; or
        at_most: must not exceed it. Neither: the row only tells.
        notes: where the time goes, the samples, and what else belongs to it.
    """

    name: str
    ours: float
    peer: float
    unit: str
    against: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def wanted(self) -> str:
        """The bound in words."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""

    @property
    def verdict(self) -> Literal["pass", "MISS", ""]:
        """Whether the ratio is as wanted."""
        if self.at_least is not None:
            return "pass" if self.ratio >= self.at_least else "MISS"
        if self.at_most is not None:
            return "pass" if self.ratio <= self.at_most else "MISS"
        return ""


def times_faster(
    name: str, ours_s: float, theirs_s: float, against: str, *, what: str, at_least: float | None = None
) -> Row:
    """Say how many times as long another program takes for the same."""
    ours_ms, theirs_ms = ours_s * 1e3, theirs_s * 1e3
    ratio = theirs_s / ours_s
    return Row(name, ours_ms, theirs_ms, "ms", against, ratio, at_least=at_least, notes={"what": what})


def times_slower(name: str, ours_s: float, peer_s: float, against: str, *, what: str, at_most: float) -> Row:
    """Say how many times as long it takes as under an easier condition."""
    ours_ms, peer_ms = ours_s * 1e3, peer_s * 1e3
    return Row(name, ours_ms, peer_ms, "ms", against, ours_s / peer_s, at_most=at_most, notes={"what": what})


def rate(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    against: str,
    *,
    at_least: float | None = None,
    notes: Mapping[str, Any],
) -> Row:
    """Compare turns per second of rounds that alternate: the median of the rounds' own ratios counts.

    Without ``at_least`` the row only tells.
    """
    ratio = median([mine / theirs for mine, theirs in zip(ours, peer, strict=True)])
    samples = {"ours": list(ours), "peer": list(peer)}
    return Row(
        name,
        median(ours),
        median(peer),
        "turns/s",
        against,
        ratio,
        at_least=at_least,
        notes={**notes, "samples": samples},
    )


def median(samples: Sequence[float]) -> float:
    """The middle of the samples."""
    return statistics.median(samples)


def quantile(samples: Sequence[float], part: float) -> float:
    """The smallest sample that ``part`` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1))]


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out for a terminal, their notes beneath."""
    head = ("figure", "ours", "against", "", "ratio", "wanted", "")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, "  ".join("─" * width for width in widths))
    for row in rows:
        lines += [f"{row.name} · {name}: {value}" for name, value in row.notes.items() if name != "samples"]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    ours, peer = f"{short(row.ours)} {row.unit}", f"{short(row.peer)} {row.unit}"
    return (row.name, ours, peer, row.against, short(row.ratio), row.wanted, row.verdict)


def short(number: float) -> str:
    """Write a number with three digits that count."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def write(noun: str, rows: Sequence[Row], took_s: float) -> Path:
    """Put the rows of one benchmark into ``bench/results/<noun>.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{noun}.json"
    listed = [{**asdict(row), "wanted": row.wanted, "verdict": row.verdict} for row in rows]
    data = {
        "benchmark": noun,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(took_s, 1),
        "machine": machine(),
        "rows": listed,
    }
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return path


def read(noun: str) -> list[Row]:
    """Read back what ``write`` wrote."""
    data = json.loads((RESULTS / f"{noun}.json").read_text())
    names = Row.__dataclass_fields__
    return [Row(**{name: row[name] for name in names}) for row in data["rows"]]


def machine() -> dict[str, Any]:
    """Describe where this runs: without this a number says nothing."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "fdatasync_ms": fdatasync_ms(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def fdatasync_ms(times: int = 200) -> float:
    """Measure what one synced append of 500 bytes costs where temporary files lie, in milliseconds."""
    import tempfile

    took = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(times):
            file.write(b"x" * 500)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return round(median(took) * 1000, 3)
