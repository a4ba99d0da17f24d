"""What a run found: kept beside the tool while it goes on, and the sum of it for docs/mutants.md."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.faults import Mutant
from tests.mutants.trial import Target, Verdict

HERE = Path(__file__).parent
# Of all mutants together so many must be killed.
WANTED = 0.95


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant that no test noticed, and the line where it was at that time."""

    line: int
    key: str


@dataclass(frozen=True, slots=True)
class Sum:
    """What became of the mutants of one module."""

    file: str
    mutants: int
    killed: int
    timed_out: tuple[str, ...]
    survivors: tuple[Survivor, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """Why survivors of a module stay, by their keys.

    ``same``: it is the same program for whoever uses it. ``left``: it is not, and nobody would miss a test.
    """

    same: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)

    def of(self, survivor: Survivor) -> str:
        """Return the reason; empty where there is none."""
        return self.same.get(survivor.key) or self.left.get(survivor.key, "")


Reasons = Mapping[str, Accepted]


@dataclass(frozen=True, slots=True)
class Count:
    """The mutants of some modules; those that are the same program count as none."""

    mutants: int
    killed: int
    timed_out: int
    left: int
    same: int

    @property
    def share(self) -> float:
        """How many of them were noticed, from 0 to 1."""
        return 1 - self.left / (self.mutants - self.same) if self.mutants > self.same else 1.0


def count(sums: Sequence[Sum], accepted: Reasons) -> Count:
    """Add modules up."""
    same = sum(
        survivor.key in accepted.get(each.file, Accepted()).same
        for each in sums
        for survivor in each.survivors
    )
    return Count(
        sum(each.mutants for each in sums),
        sum(each.killed for each in sums),
        sum(len(each.timed_out) for each in sums),
        sum(len(each.survivors) for each in sums) - same,
        same,
    )


def targets(table: Path) -> list[Target]:
    """Read which tests decide over which module."""
    rows = tomllib.loads(table.read_text())["module"]
    return [Target(row["file"], tuple(row["tests"])) for row in rows]


def reasons(file: Path) -> dict[str, Accepted]:
    """Read why survivors stay, by the module's file."""
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
        try:
            rows = [json.loads(line) for line in self._path.read_text().splitlines()]
        except FileNotFoundError:
            return
        for row in rows:
            verdict = Verdict(row["key"], row["verdict"], row["by"])
            same = row["source"] == self._source
            if same and (verdict.verdict != "survived" or row["tests"] == self._tests):
                self.verdicts[verdict.key] = verdict

    def add(self, verdict: Verdict) -> None:
        """Note a verdict, for a run that goes on after this one."""
        self.verdicts[verdict.key] = verdict
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({**asdict(verdict), "source": self._source, "tests": self._tests}) + "\n")

    def sum(self, target: Target, mutants: Sequence[Mutant]) -> Sum:
        """Add up."""
        found = [(mutant, self.verdicts[mutant.key].verdict) for mutant in mutants]
        return Sum(
            target.file,
            len(mutants),
            sum(verdict == "killed" for _, verdict in found),
            tuple(mutant.key for mutant, verdict in found if verdict == "timed out"),
            tuple(Survivor(mutant.line, mutant.key) for mutant, verdict in found if verdict == "survived"),
        )


def _digest(files: Iterable[str]) -> str:
    return hashlib.sha256(b"\0".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def read_sums(file: Path) -> list[Sum]:
    """Read the sums of the last run of each module."""
    try:
        rows = json.loads(file.read_text())
    except FileNotFoundError:
        return []
    return [_sum(row) for row in rows]


def _sum(row: Mapping[str, Any]) -> Sum:
    survivors = tuple(Survivor(**each) for each in row["survivors"])
    return Sum(row["file"], row["mutants"], row["killed"], tuple(row["timed_out"]), survivors)


def write_sums(file: Path, sums: Sequence[Sum]) -> None:
    """Write them, in the table's order."""
    rows = [asdict(each) for each in sums]
    file.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def faults_of(sums: Sequence[Sum], accepted: Reasons) -> list[str]:
    """Say what is wrong with a result: survivors without a reason, reasons without a survivor, the share."""
    found = []
    for each in sums:
        why = accepted.get(each.file, Accepted())
        keys = {survivor.key for survivor in each.survivors}
        found += [
            f"{each.file}:{survivor.line} survived without a reason: {survivor.key}"
            for survivor in each.survivors
            if not why.of(survivor)
        ]
        found += [
            f"{each.file}: no survivor any more: {key}" for key in (*why.same, *why.left) if key not in keys
        ]
    all_ = count(sums, accepted)
    if all_.share < WANTED:
        found.append(f"{all_.share:.1%} of {all_.mutants} mutants were detected; {WANTED:.0%} are required")
    return found
