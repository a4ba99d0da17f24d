"""``python -m tests.mutants``: try the mutants of each module, say which survived, write docs/mutants.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.mutants.faults import mutants
from tests.mutants.page import PAGE, written
from tests.mutants.pool import Limit
from tests.mutants.record import HERE, Progress, Sum, faults_of, read_sums, reasons, targets, write_sums
from tests.mutants.trial import NotGreen, Target, verdicts


def main() -> int:
    """Run what the command line says; 1: a survivor has no reason, or too many survived; 2: tests are red."""
    args = _parser().parse_args()
    sys.path.insert(0, str(Path.cwd()))
    all_targets = targets(args.folder / "table.toml")
    chosen = [target for target in all_targets if args.module in target.file]
    if not chosen:
        print(f"no module of {args.folder / 'table.toml'} has {args.module!r} in its path", file=sys.stderr)
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
    print("\n".join(wrong) if wrong else "every mutant was noticed, or stays for its reason")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--module", default="", help="those whose path holds this")
    parser.add_argument("--jobs", type=int, default=2, help="so many mutants side by side")
    parser.add_argument("--again", action="store_true", help="believe nothing of an earlier run")
    parser.add_argument(
        "--wait-s", type=float, default=10.0, help="so long a test may take, besides what it takes"
    )
    parser.add_argument("--work-s", type=float, default=5.0, help="and so much of the processor's time")
    parser.add_argument("--folder", type=Path, default=HERE, help="of table.toml and accepted.toml")
    parser.add_argument("--build", type=Path, default=Path("build/mutants"), help="where verdicts are kept")
    return parser


def _try(target: Target, args: argparse.Namespace) -> Sum:
    """Try what has no verdict yet; a survivor is told at once."""
    found = mutants(Path(target.file).read_text())
    progress = Progress(args.build, target)
    if not args.again:
        progress.read()
    left = [mutant for mutant in found if mutant.key not in progress.verdicts]
    print(f"── {target.file}: {len(found)} mutants, {len(left)} to try", flush=True)
    lines, began = {mutant.key: mutant.line for mutant in found}, time.monotonic()
    tried = verdicts(target, left, jobs=args.jobs, least=Limit(args.wait_s, args.work_s)) if left else ()
    for verdict in tried:
        progress.add(verdict)
        if verdict.verdict != "killed":
            print(f"   {verdict.verdict}: {lines[verdict.key]}: {verdict.key}", flush=True)
    print(f"   {time.monotonic() - began:.0f} s")
    return progress.sum(target, found)


if __name__ == "__main__":
    sys.exit(main())
