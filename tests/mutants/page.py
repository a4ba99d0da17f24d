"""``docs/mutants.md``, made from the results of the last runs: ``python -m tests.mutants.page``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.mutants.record import HERE, Accepted, Count, Reasons, Sum, count, read_sums, reasons

ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "mutants.md"
_HEAD = """# Mutation tests

`make mutants` makes one small change at a time to the most important modules, and runs their tests on each
of these mutants. If every test passes, the mutant survives: a test is missing, or the code is not needed.
The run writes this page.

| module | mutants | killed | timed out | survived | equivalent | detected |
|---|---:|---:|---:|---:|---:|---:|
"""
_SURVIVED = """
*Killed*: a test failed. *Timed out*: a test hung, which counts as detected. *Equivalent*: the mutant
behaves like the original, so it does not count.

## Survivors

| module | lines | why it has no test |
|---|---|---|
"""
_HOW = """
Which mutants these are, and which ones are equivalent and why, is listed in `tests/mutants/accepted.toml`.

## How it works

```sh
make mutants                          # all modules; continues after an interruption
make mutants MODULE=journal           # modules whose path contains the word
make mutants MODULE=journal AGAIN=1   # ignore results of earlier runs
make mutants JOBS=1                   # one at a time instead of two
```

- `tests/mutants/table.toml` lists each module and its tests. They must pass on the original.
- A mutant has one change: a comparison shifted at its boundary or inverted, `and` for `or`, a `not`
  removed, a condition inverted, a number increased or decreased by one, `True` for `False`, another
  arithmetic operator, `min` for `max`, `any` for `all`, half a slice, a comprehension without its
  condition, `break` for `continue`, `return None`, or a call, an assignment, a `raise` or a `del` removed.
  Strings, types and logging are not changed.
- The tests of a module are collected once. Each mutant runs in a fork of that process, which runs the tests
  that cover the changed line, fast ones first, until one fails. Python processes started by a test contain
  the change, too. If it affects the import, the module is imported again.
- A mutant times out if a test takes longer than six times its usual time plus 10 seconds, or all its tests
  use more CPU than six times their usual time plus 5 seconds.
- Each survivor needs a reason in `accepted.toml`. The run fails if a reason is missing or no longer needed,
  or if less than 95 % of all mutants are detected.
- Results are kept in `build/mutants` until the module changes. Survivors are tried again when their tests
  change.
"""


def page(sums: Sequence[Sum], accepted: Reasons) -> str:
    """Return the text of the page."""
    rows = [_row(f"`{each.file}`", count([each], accepted)) for each in sums]
    rows.append(_row("all", count(sums, accepted)))
    survivors = [row for each in sums for row in _survivors(each, accepted.get(each.file, Accepted()))]
    return "".join([_HEAD, *rows, _SURVIVED, *survivors, _HOW])


def _row(name: str, found: Count) -> str:
    numbers = (found.mutants, found.killed, found.timed_out, found.left, found.same)
    return f"| {name} | {' | '.join(map(str, numbers))} | {found.share:.1%} |\n"


def _survivors(each: Sum, why: Accepted) -> list[str]:
    lines: dict[str, dict[str, None]] = {}
    for survivor in each.survivors:
        if survivor.key not in why.same:
            reason = why.left.get(survivor.key) or "**no reason yet**"
            lines.setdefault(reason, {})[str(survivor.line)] = None
    return [f"| `{each.file}` | {', '.join(numbers)} | {reason} |\n" for reason, numbers in lines.items()]


def written(folder: Path = HERE) -> str:
    """Return the page for the results in ``folder``."""
    return page(read_sums(folder / "results.json"), reasons(folder / "accepted.toml"))


if __name__ == "__main__":
    PAGE.write_text(written())
