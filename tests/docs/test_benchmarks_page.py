"""The page of figures says what was measured, and what other pages claim of it stands in one of its rows."""

from __future__ import annotations

import re

import pytest

from bench import report
from tests.support.harness import ROOT

CLAIM = re.compile(r"\[([^\]]*\d[^\]]*)\]\((?:docs/)?benchmarks\.md#([a-z]+)\)")
NUMBER = re.compile(r"\d[\d,.]*\d|\d")
# What somebody measured, as far as a page without its source can be told from a setting.
FIGURE = re.compile(r"(?<![\w.#-])\d[\d.,]*\s?(?:ms|s|seconds?|kB|MB|GB|%|turns|messages/s|turns/s|times)\b")
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path != report.PAGE)]
claims = [(page.name, *found) for page in PAGES for found in CLAIM.findall(page.read_text())]


def test_the_page_and_its_plots_are_those_of_the_results() -> None:
    assert report.PAGE.read_text() == report.page(), "run `python -m bench.report`"
    there = {path.name: path.read_text() for path in report.PLOTS.glob("*.svg")}
    assert there == report.plots(), "run `python -m bench.report`"


def test_readme_makes_claims() -> None:
    assert [page for page, _, _ in claims].count("README.md") >= 5


def test_each_figure_of_readme_is_linked_to_its_rows() -> None:
    assert FIGURE.findall(CLAIM.sub("", README)) == []


@pytest.mark.parametrize(("page", "words", "noun"), claims)
def test_a_claim_stands_in_its_rows(page: str, words: str, noun: str) -> None:
    section = report.PAGE.read_text().partition(f"\n## {noun}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert any(_numbers(words) <= _numbers(row) for row in rows), f"{page}: {words} is in no row of {noun}"


def _numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))
