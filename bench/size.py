"""The size of the code base and the way of one message through it: ``make metrics``."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.hops import PACKAGES, ROOT

# A file of so few lines only makes a folder a package.
EMPTY = 5
SMALL = 80


def figures() -> Iterator[tuple[str, float]]:
    """Yield the figures of the code base: lines, modules, documents, start of the command line."""
    files = [path for package in PACKAGES for path in Path(package).rglob("*.py")]
    lines = {path: path.read_bytes().count(b"\n") for path in files}
    modules = [path for path in files if lines[path] > EMPTY]
    importers = _importers(files)
    yield "product lines", sum(lines.values())
    yield f"modules (> {EMPTY} lines)", len(modules)
    yield "median module, lines", statistics.median(lines[path] for path in modules)
    yield (
        f"modules with one importer, < {SMALL} lines",
        sum(importers[_name(path)] == 1 and lines[path] < SMALL for path in modules),
    )
    yield "test lines", sum(path.read_bytes().count(b"\n") for path in (ROOT / "tests").rglob("*.py"))
    yield "ARCHITECTURE.md, bytes", (ROOT / "ARCHITECTURE.md").stat().st_size
    yield "pyproject.toml, bytes", (ROOT / "pyproject.toml").stat().st_size
    yield "README.md, words", len((ROOT / "README.md").read_text().split())
    yield "--help, seconds", min(_help_s() for _ in range(5))


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _importers(files: list[Path]) -> Counter[str]:
    """Count by module how many others name it in an import."""
    names = {_name(path) for path in files}
    found: Counter[str] = Counter()
    for path in files:
        named = set()
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] == ["from"] and "import" in words:
                named.add(words[1])
                named |= {f"{words[1]}.{word.strip('(),')}" for word in words[3:]}
            elif words[:1] == ["import"]:
                named |= {word.strip(",") for word in words[1:]}
        found.update((named & names) - {_name(path)})
    return found


def _help_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "gateway", "--help"], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the figures of the code base, then those of one message."""
    for name, figure in figures():
        print(f"{name:<42}{figure:>10,.2f}" if isinstance(figure, float) else f"{name:<42}{figure:>10,}")
    print("one Telegram message:", flush=True)
    subprocess.run([sys.executable, "-m", "bench.hops", "--figures"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
