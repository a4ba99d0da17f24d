"""Writes ``docs/benchmarks.md`` and its plots from ``bench/results``: ``python -m bench.report``."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.__main__ import LONG, NOUNS
from bench.row import RESULTS, Row, read, short

SAID = NOUNS | LONG
DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
PLOTS = DOCS / "benchmarks"
# What a plot is drawn of: rows of one benchmark, by how their names begin.
DRAWN = (
    ("length", "turn"),
    ("rates", "echo, 100 chats"),
    ("rates", "LiteLLM, 100 chats"),
    ("relay", "turns"),
    ("killed", "messages lost by kill -9"),
)
HEAD = """\
# Benchmarks

`make bench` measures each figure together with a peer or a limit in the same run. Absolute numbers depend
on the machine; compare the ratios. `python -m bench.report` generates this page and its plots from
`bench/results/`; `python -m bench NAME` repeats one benchmark. The code in `bench/`
defines each figure. Missed targets are shown as MISS.

The run installs the peers in separate environments: nanobot 0.1.4.post3 and 0.3.5, a bare relay with
aio-pika, and one with FastStream. Both relays have equally durable queues but no transcripts. The nanobots'
queue is in memory, and their transcripts are not synced.
"""
OURS = "chat-gateway"
# Height of a bar, width of the drawing, room for the names: all in pixels.
BAR, WIDTH, NAMES = 26, 760, 250


def page() -> str:
    """Return the page as it belongs to the results that lie there."""
    taken = [noun for noun in SAID if (RESULTS / f"{noun}.json").exists()]
    return "\n".join([HEAD, *("\n".join(_section(noun)) for noun in taken)])


def plots() -> dict[str, str]:
    """Return each plot's file name with its SVG."""
    drawn = {}
    for noun, begin in DRAWN:
        if rows := _drawn(noun, begin):
            drawn[_plot_name(noun, begin)] = svg(begin, rows)
    return drawn


def main() -> int:
    """Write both."""
    PAGE.write_text(page())
    PLOTS.mkdir(exist_ok=True)
    for old in PLOTS.glob("*.svg"):
        old.unlink()
    for name, svg in plots().items():
        (PLOTS / name).write_text(svg)
    return 0


def _rows(noun: str) -> list[Row]:
    return read(noun) if (RESULTS / f"{noun}.json").exists() else []


def _drawn(noun: str, begin: str) -> list[Row]:
    """List the rows of a plot; a single one says no more as a bar than as a number."""
    rows = [row for row in _rows(noun) if row.name.startswith(begin)]
    return rows if len(rows) > 1 else []


def _section(noun: str) -> Iterator[str]:
    data: dict[str, Any] = json.loads((RESULTS / f"{noun}.json").read_text())
    machine = data["machine"]
    yield f"## {noun}\n"
    yield f"{SAID[noun][0].upper()}{SAID[noun][1:]}. Taken {data['at'][:10]} in {data['took_s']:g} s:"
    yield (
        f"{machine['cores']} cores ({machine['processor']}), Linux {machine['kernel'].partition('-')[0]}, "
        f"Python {machine['python']}, a synced append {machine['fdatasync_ms']:g} ms, "
        f"load {machine['load'][0]:g} before.\n"
    )
    for number, (of, begin) in enumerate(DRAWN):
        if of == noun and _drawn(of, begin):
            yield f"![{begin}, as bars](benchmarks/{_plot_name(*DRAWN[number])})\n"
    yield "| figure | ours | against | | ratio | wanted | |"
    yield "|---|---|---|---|---|---|---|"
    rows = _rows(noun)
    for row in rows:
        cells = (
            row.name,
            f"{short(row.ours)} {row.unit}",
            f"{short(row.peer)} {row.unit}",
            row.against,
            short(row.ratio),
            row.wanted,
            row.verdict.lower() if row.verdict == "pass" else row.verdict,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    told = {
        f"- {row.name}: {value}."
        for row in rows
        for name, value in row.notes.items()
        if name == "what" and value
    }
    if told:
        yield ""
        yield from sorted(told)
    yield ""


def _plot_name(noun: str, begin: str) -> str:
    words = "-".join(begin.lower().replace(",", "").split())
    return f"{noun}-{words}.svg"


def svg(title: str, rows: Sequence[Row]) -> str:
    """Draw bars: ours by what the rows' names say beyond the title, each peer once."""
    bars: dict[str, tuple[float, bool]] = {}
    for row in rows:
        bars.setdefault(row.name.removeprefix(title).strip(" ,") or OURS, (row.ours, True))
    for row in rows:
        bars.setdefault(row.against, (row.peer, False))
    # Where nobody lost anything, no bar has a length.
    most = max(value for value, _ in bars.values()) or 1
    height = BAR * (len(bars) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" role="img">',
        f"<title>{html.escape(title)}, {rows[0].unit}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="{BAR - 8}" font-weight="bold">{html.escape(title)}, {rows[0].unit}</text>',
    ]
    for number, (name, (value, is_ours)) in enumerate(bars.items(), 1):
        y, long = BAR * number + 8, (WIDTH - NAMES - 90) * value / most
        fill = "#1f6feb" if is_ours else "#8b949e"
        lines += [
            f'<text x="{NAMES - 8}" y="{y + 14}" text-anchor="end">{html.escape(name)}</text>',
            f'<rect x="{NAMES}" y="{y}" width="{long:.1f}" height="{BAR - 8}" fill="{fill}"/>',
            f'<text x="{NAMES + long + 6:.1f}" y="{y + 14}">{short(value)}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    sys.exit(main())
