"""What a run found: kept beside the tool while it goes on, and its tables in docs/mutants.md."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.mutants.faults import Mutant
from tests.mutants.trial import Target, Verdict

HERE = Path(__file__).parent
# Of all mutants together so many must be killed.
WANTED = 0.95


@dataclass(frozen=True, slots=True)
class Sum:
    """What became of the mutants of one module; ``survivors``: the line of each, at that time, by its key."""

    file: str
    mutants: int
    killed: int
    timed_out: list[str]
    survivors: dict[str, int]


@dataclass(frozen=True, slots=True)
class Accepted:
    """Why survivors of a module stay, by their keys.

    ``same``: it is the same program for whoever uses it. ``left``: it is not, and nobody would miss a test.
    """

    same: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


Reasons = Mapping[str, Accepted]


def share(sums: Sequence[Sum], accepted: Reasons) -> float:
    """Return how many mutants were noticed, from 0 to 1; those that are the same program count as none."""
    left = sum(len(left_of(each, accepted)) for each in sums)
    same = sum(len(each.survivors) for each in sums) - left
    count = sum(each.mutants for each in sums) - same
    return 1 - left / count if count else 1.0


def left_of(each: Sum, accepted: Reasons) -> dict[str, int]:
    same = accepted.get(each.file, Accepted()).same
    return {key: line for key, line in each.survivors.items() if key not in same}


def targets(table: Path) -> list[Target]:
    rows = tomllib.loads(table.read_text())["module"]
    return [Target(row["file"], tuple(row["tests"])) for row in rows]


def reasons(file: Path) -> dict[str, Accepted]:
    return {name: Accepted(**kinds) for name, kinds in tomllib.loads(file.read_text()).items()}


class Progress:
    """The verdicts of one module so far, in a file that a run goes on with.

    A verdict holds while the module's source is the same; a survivor is tried again when a test has changed.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self._path = folder / f"{target.module}.jsonl"
        self._source = _digest([target.file])
        self._tests = _digest(target.tests)
        self.verdicts: dict[str, Verdict] = {}

    def read(self) -> None:
        """Take in what an earlier run found and still holds."""
        rows = self._path.read_text().splitlines() if self._path.exists() else []
        for row in map(json.loads, rows):
            same = row.pop("source") == self._source, row.pop("tests") == self._tests
            if same[0] and (row["verdict"] != "survived" or same[1]):
                self.verdicts[row["key"]] = Verdict(**row)

    def add(self, verdict: Verdict) -> None:
        """Note a verdict, for a run that goes on after this one."""
        self.verdicts[verdict.key] = verdict
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({**asdict(verdict), "source": self._source, "tests": self._tests}) + "\n")

    def sum(self, target: Target, mutants: Sequence[Mutant]) -> Sum:
        found = [(mutant, self.verdicts[mutant.key].verdict) for mutant in mutants]
        return Sum(
            target.file,
            len(mutants),
            sum(verdict == "killed" for _, verdict in found),
            [mutant.key for mutant, verdict in found if verdict == "timed out"],
            {mutant.key: mutant.line for mutant, verdict in found if verdict == "survived"},
        )


def _digest(files: Iterable[str]) -> str:
    return hashlib.sha256(b"\0".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def read_sums(file: Path) -> list[Sum]:
    return [Sum(**row) for row in json.loads(file.read_text())] if file.exists() else []


def write_sums(file: Path, sums: Sequence[Sum]) -> None:
    file.write_text(json.dumps([asdict(each) for each in sums], indent=1, ensure_ascii=False) + "\n")


def faults_of(sums: Sequence[Sum], accepted: Reasons) -> list[str]:
    """Say what is wrong with a result: survivors without a reason, reasons without a survivor, the share."""
    found = []
    for each in sums:
        why = accepted.get(each.file, Accepted())
        known = {**why.same, **why.left}
        found += [
            f"{each.file}:{line} survived without a reason: {key}"
            for key, line in each.survivors.items()
            if not known.get(key)
        ]
        found += [f"{each.file}: no survivor any more: {key}" for key in known if key not in each.survivors]
    if (noticed := share(sums, accepted)) < WANTED:
        found.append(f"{noticed:.1%} of all mutants were detected; {WANTED:.0%} are required")
    return found


ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "mutants.md"
# The rows below the line of dashes.
_TABLE = re.compile(r"(?<=[-:]\|\n)(\| `.*\|\n|\| all .*\|\n)*")


def written(folder: Path = HERE) -> str:
    sums, accepted = read_sums(folder / "results.json"), reasons(folder / "accepted.toml")
    modules = [_row(f"`{each.file}`", [each], accepted) for each in sums]
    survivors = [row for each in sums for row in _survivors(each, accepted)]
    tables = iter([[*modules, _row("all", sums, accepted)], survivors])
    return _TABLE.sub(lambda _: "".join(next(tables)), PAGE.read_text(), count=2)


def _row(name: str, sums: Sequence[Sum], accepted: Reasons) -> str:
    left = sum(len(left_of(each, accepted)) for each in sums)
    numbers = [
        sum(each.mutants for each in sums),
        sum(each.killed for each in sums),
        sum(len(each.timed_out) for each in sums),
        left,
        sum(len(each.survivors) for each in sums) - left,
    ]
    return f"| {name} | {' | '.join(map(str, numbers))} | {share(sums, accepted):.1%} |\n"


def _survivors(each: Sum, accepted: Reasons) -> list[str]:
    lines: dict[str, dict[str, None]] = {}
    for key, line in left_of(each, accepted).items():
        reason = accepted.get(each.file, Accepted()).left.get(key) or "**no reason yet**"
        lines.setdefault(reason, {})[str(line)] = None
    return [f"| `{each.file}` | {', '.join(numbers)} | {reason} |\n" for reason, numbers in lines.items()]
