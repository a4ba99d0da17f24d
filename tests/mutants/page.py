"""``docs/mutants.md``, made from the results of the last runs: ``python -m tests.mutants.page``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.mutants.record import HERE, Accepted, Count, Reasons, Sum, count, read_sums, reasons

ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "mutants.md"
_HEAD = """# Mutation tests

`make mutants` puts one fault at a time into the modules that decide, and runs the tests that decide over
them: a fault that no test notices is a test that is missing, or code that nobody needs. This page is written
by the run; [how it is done](#how-it-is-done) stands below.

| module | mutants | killed | timed out | left | the same program | noticed |
|---|---:|---:|---:|---:|---:|---:|
"""
_HOW = """
## How it is done

```sh
make mutants                          # all modules; it goes on where it was interrupted
make mutants MODULE=journal           # those whose path holds the word
make mutants MODULE=journal AGAIN=1   # nothing of an earlier run is believed
make mutants JOBS=1                   # one at a time instead of two
```

- `tests/mutants/table.toml` names each module and its tests. They must be green without a fault, or nothing
  is tried.
- A fault is one of: a comparison on its boundary or turned round, `and` for `or`, a `not` left out, a
  condition turned round, a number one more or one less, `True` for `False`, another sum, `min` for `max`,
  `any` for `all`, half a slice, a comprehension without its condition, `break` for `continue`, `return None`,
  and a call, an assignment, a `raise` or a `del` left out. Texts, types and what is logged are left alone.
- The tests of a module are collected once; each mutant is put into a forked copy of that process, which runs
  the tests that run its lines, the quick ones first, until one fails. A Python that a test starts has the
  fault, too. A mutant that acts at the import is imported anew.
- A mutant is timed out where a test takes six times as long as it does otherwise, and 10 seconds, or 5 of the
  processor: it waits for what never comes, or is in a loop that does not end. That counts as noticed.
- What survives needs a reason in `tests/mutants/accepted.toml`, which names it by function and words, not by
  line. One that is the same program for whoever uses it does not count. The run fails where a reason is
  missing, where one is no longer needed, and below 95 % of all.
- The verdicts so far are kept in `build/mutants`. They hold while the module is the same; what survived is
  tried again when its tests have changed.
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
        (survivor, "the same program: " if survivor.key in why.same else "", why.of(survivor))
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
