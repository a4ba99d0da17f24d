"""``docs/mutants.md``, made from the results of the last runs: ``python -m tests.mutants.page``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.mutants.record import HERE, Accepted, Count, Reasons, Sum, count, read_sums, reasons

ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "mutants.md"
_HEAD = """# Mutation tests

`make mutants` puts one fault at a time into the most important modules and runs their tests. A fault that
no test detects means a missing test, or code that nobody needs. The run generates this page;
[how it works](#how-it-works) is below.

| module | mutants | killed | timed out | survived | equivalent | detected |
|---|---:|---:|---:|---:|---:|---:|
"""
_HOW = """
## How it works

```sh
make mutants                          # all modules; continues after an interruption
make mutants MODULE=journal           # modules whose path contains the word
make mutants MODULE=journal AGAIN=1   # ignore results of earlier runs
make mutants JOBS=1                   # one at a time instead of two
```

- `tests/mutants/table.toml` lists each module and its tests. They must pass without a fault.
- Faults are: a comparison changed at its boundary or inverted, `and` for `or`, a `not` removed, a condition
  inverted, a number increased or decreased by one, `True` for `False`, another arithmetic operator, `min`
  for `max`, `any` for `all`, half a slice, a comprehension without its condition, `break` for `continue`,
  `return None`, and a call, an assignment, a `raise` or a `del` removed. Texts, types and logging are not
  changed.
- The tests of a module are collected once; each mutant runs in a forked copy of that process, which runs
  the tests that cover its lines, quick ones first, until one fails. Python processes that a test starts
  contain the fault, too. A mutant that affects the import is imported again.
- A mutant is timed out if a test takes six times as long as usual and at least 10 seconds, or 5 seconds of
  CPU time: it waits forever or loops. That counts as detected.
- A survivor needs a reason in `tests/mutants/accepted.toml`, identified by function and code, not by line.
  Equivalent mutants do not count. The run fails if a reason is missing or no longer needed, and below 95 %
  in total.
- Results are kept in `build/mutants`. They are valid as long as the module is unchanged; survivors are
  tried again when their tests change.
"""


def page(sums: Sequence[Sum], accepted: Reasons) -> str:
    """Write the page."""
    rows = [_row(f"`{each.file}`", count([each], accepted)) for each in sums]
    parts = [_HEAD, "\n".join([*rows, _row("all", count(sums, accepted))]), "\n"]
    if any(each.survivors for each in sums):
        parts.append("\n## What survived, and why it stays\n")
    for each in sums:
        if each.survivors:
            parts += [f"\n`{each.file}`\n\n", *_survivors(each, accepted.get(each.file, Accepted()))]
    return "".join(parts) + _HOW


def _row(name: str, found: Count) -> str:
    numbers = (found.mutants, found.killed, found.timed_out, found.left, found.same)
    return f"| {name} | {' | '.join(map(str, numbers))} | {found.share:.1%} |"


def _survivors(each: Sum, why: Accepted) -> list[str]:
    said = [
        (survivor, "equivalent: " if survivor.key in why.same else "", why.of(survivor))
        for survivor in each.survivors
    ]
    return [
        f"- line {survivor.line}, ``{survivor.key}``: {kind}{reason or '**no reason yet**'}\n"
        for survivor, kind, reason in said
    ]


def written(folder: Path = HERE) -> str:
    """Return the page as the results beside this module have it."""
    return page(read_sums(folder / "results.json"), reasons(folder / "accepted.toml"))


if __name__ == "__main__":
    PAGE.write_text(written())
