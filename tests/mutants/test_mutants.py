"""The tool finds what no test notices, knows an endless loop, goes on where it was; the page is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.mutants.faults import mutants
from tests.mutants.record import HERE, PAGE, ROOT, faults_of, read_sums, reasons, targets, written
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "interfaces", "Each fault that `make mutants` injects is caught by a test or listed with a reason."
)

TOY = """
LEAST = 1

def is_grown(years: int) -> bool:
    \"\"\"No fault is put into texts.\"\"\"
    return years >= LEAST

def emptied(places: list[str]) -> int:
    count = 0
    while places:
        places.pop()
        count += 1
    return count
"""
TESTS = """
from toy import emptied, is_grown

def test_is_grown():
    assert is_grown(3) and not is_grown(0)

def test_emptied():
    assert emptied(["a", "b", "c"]) == 3
"""
# As the tests' own.
CONFTEST = """
import gc

def pytest_collection_finish():
    gc.freeze()
"""
BOUNDARY = "is_grown: return years >= LEAST: years >= LEAST → years > LEAST"
YEARS = "module: LEAST = 1: 1 → 2"

# The toy needs no plugin, and each takes its time.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["--folder", ".", "--build", "build", "--work-s", "1"]
    command = [sys.executable, "-m", "tests.mutants", *options, *words]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def make_toy(folder: Path, accepted: str = "", tests: str = TESTS) -> None:
    (folder / "toy.py").write_text(TOY)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_toy.py").write_text(tests)
    (folder / "table.toml").write_text('[[module]]\nfile = "toy.py"\ntests = ["test_toy.py"]\n')
    (folder / "accepted.toml").write_text(accepted)


def test_what_no_test_notices_is_told_until_a_test_or_a_reason_comes(tmp_path: Path) -> None:
    make_toy(tmp_path)

    first = run(tmp_path)

    assert first.returncode == 1, first.stderr
    (found,) = read_sums(tmp_path / "results.json")
    assert found.survivors == {BOUNDARY: 6, YEARS: 2}
    assert f"toy.py:6 survived without a reason: {BOUNDARY}" in first.stdout
    assert found.timed_out == ["emptied: places.pop() → pass"]
    assert found.killed == found.mutants - 3 == len(mutants(TOY)) - 3

    # It goes on with what survived alone: the missing test has come, and a reason is left over.
    make_toy(
        tmp_path,
        f'["toy.py".left]\n{json.dumps(YEARS, ensure_ascii=False)} = "nobody is as exact"\n',
        TESTS.replace("is_grown(3)", "is_grown(1)"),
    )
    second = run(tmp_path, "--module", "toy")
    assert "2 to try" in second.stdout
    assert [line for line in second.stdout.splitlines() if "survi" in line] == [
        f"toy.py: no survivor any more: {YEARS}"
    ]


def test_tests_that_fail_without_a_fault_decide_nothing(tmp_path: Path) -> None:
    make_toy(tmp_path, tests=TESTS.replace("== 3", "== 4"))

    refused = run(tmp_path)

    assert refused.returncode == 2
    assert "toy.py: its tests fail on the original" in refused.stderr
    assert not (tmp_path / "results.json").exists()


def test_the_page_is_that_of_the_results_and_every_survivor_has_its_reason() -> None:
    """Over all modules of the table, of which no file is missing."""
    sums = read_sums(HERE / "results.json")
    table = targets(HERE / "table.toml")

    assert PAGE.read_text() == written()
    assert faults_of(sums, reasons(HERE / "accepted.toml")) == []
    assert [each.file for each in sums] == [target.file for target in table]
    assert all((ROOT / file).exists() for target in table for file in (target.file, *target.tests))
