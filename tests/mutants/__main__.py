"""``python -m tests.mutants``: tries mutants of each module, prints the survivors, writes docs/mutants.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.mutants.faults import mutants
from tests.mutants.pool import Limit
from tests.mutants.record import (
    HERE,
    PAGE,
    Progress,
    Sum,
    faults_of,
    read_sums,
    reasons,
    targets,
    write_sums,
    written,
)
from tests.mutants.trial import NotGreen, Target, verdicts

# Added to the time limit of a test.
WAIT_S = 10.0


def main() -> int:
    """Run what the command line says; 1: a survivor has no reason, or too many survived; 2: tests are red."""
    args = _parser().parse_args()
    sys.path.insert(0, str(Path.cwd()))
    all_targets = targets(args.folder / "table.toml")
    chosen = [target for target in all_targets if args.module in target.file]
    if not chosen:
        print(
            f"no module of {args.folder / 'table.toml'} has a path that contains {args.module!r}",
            file=sys.stderr,
        )
        return 2
    results = args.folder / "results.json"
    for target in chosen:
        try:
            found = _try(target, args)
        except NotGreen as error:
            print(f"refused: {error}", file=sys.stderr)
            return 2
        sums = {each.file: each for each in read_sums(results)} | {target.file: found}
        write_sums(results, [sums[each.file] for each in all_targets if each.file in sums])
        if args.folder == HERE:
            PAGE.write_text(written())
    names = {target.file for target in chosen}
    accepted = reasons(args.folder / "accepted.toml")
    wrong = faults_of([each for each in read_sums(results) if each.file in names], accepted)
    print("\n".join(wrong) if wrong else "every mutant was detected or has a reason")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--module", default="", help="only modules whose path contains this")
    parser.add_argument(
        "--jobs", type=int, default=2, help="mutants tried in parallel (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="ignore the results of earlier runs")
    parser.add_argument(
        "--work-s",
        type=float,
        default=5.0,
        help="seconds added to the CPU limit of its tests (default: %(default)s)",
    )
    parser.add_argument("--folder", type=Path, default=HERE, help="where table.toml and accepted.toml are")
    parser.add_argument(
        "--build",
        type=Path,
        default=Path("build/mutants"),
        help="where results are kept (default: %(default)s)",
    )
    return parser


def _try(target: Target, args: argparse.Namespace) -> Sum:
    """Try the mutants without a result; print survivors at once."""
    found = mutants(Path(target.file).read_text())
    progress = Progress(args.build, target)
    if not args.again:
        progress.read()
    left = [mutant for mutant in found if mutant.key not in progress.verdicts]
    print(f"── {target.file}: {len(found)} mutants, {len(left)} to try", flush=True)
    lines, began = {mutant.key: mutant.line for mutant in found}, time.monotonic()
    tried = verdicts(target, left, jobs=args.jobs, least=Limit(WAIT_S, args.work_s)) if left else ()
    for verdict in tried:
        progress.add(verdict)
        if verdict.verdict != "killed":
            print(f"   {verdict.verdict}: {lines[verdict.key]}: {verdict.key}", flush=True)
    print(f"   {time.monotonic() - began:.0f} s")
    return progress.sum(target, found)


if __name__ == "__main__":
    sys.exit(main())
