"""What a run found: kept beside the tool while it goes on, and the sum of it for docs/mutants.md."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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

    @property
    def share(self) -> float:
        """How many of them were noticed, from 0 to 1."""
        return 1 - len(self.survivors) / self.mutants if self.mutants else 1.0


def targets(table: Path) -> list[Target]:
    """Read which tests decide over which module."""
    rows = tomllib.loads(table.read_text())["module"]
    return [Target(row["file"], tuple(row["tests"])) for row in rows]


def reasons(file: Path) -> dict[str, dict[str, str]]:
    """Read why survivors stay: by the module's file, by the survivor's key."""
    return tomllib.loads(file.read_text())


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


def faults_of(sums: Sequence[Sum], accepted: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Say what is wrong with a result: survivors without a reason, reasons without a survivor, the share."""
    found = []
    for each in sums:
        why = accepted.get(each.file, {})
        keys = {survivor.key for survivor in each.survivors}
        found += [
            f"{each.file}:{survivor.line} survived without a reason: {survivor.key}"
            for survivor in each.survivors
            if survivor.key not in why
        ]
        found += [f"{each.file}: no survivor any more: {key}" for key in why if key not in keys]
    total, survived = sum(each.mutants for each in sums), sum(len(each.survivors) for each in sums)
    if total and 1 - survived / total < WANTED:
        found.append(
            f"{1 - survived / total:.1%} of {total} mutants were noticed, and {WANTED:.0%} are wanted"
        )
    return found
