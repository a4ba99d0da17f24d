"""The page of figures says what was measured, and what README claims stands in one of its rows."""

from __future__ import annotations

import re

import pytest

from bench import report
from tests.support.harness import ROOT

CLAIM = re.compile(r"\[([^\]]*\d[^\]]*)\]\(docs/benchmarks\.md#([a-z]+)\)")
NUMBER = re.compile(r"\d[\d,.]*\d|\d")
claims = CLAIM.findall((ROOT / "README.md").read_text())


def test_the_page_and_its_plots_are_those_of_the_results() -> None:
    assert report.PAGE.read_text() == report.page(), "run `python -m bench.report`"
    there = {path.name: path.read_text() for path in report.PLOTS.glob("*.svg")}
    assert there == report.plots(), "run `python -m bench.report`"


def test_readme_makes_claims() -> None:
    assert claims


@pytest.mark.parametrize(("words", "noun"), claims)
def test_a_claim_of_readme_stands_in_its_rows(words: str, noun: str) -> None:
    section = report.PAGE.read_text().partition(f"\n## {noun}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert any(_numbers(words) <= _numbers(row) for row in rows), f"{words}: not in the rows of {noun}"


def _numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))
