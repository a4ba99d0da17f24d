"""``docs/seeds.md`` is true: its tests are there, its settings exist, and no row lacks either."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.config.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "seeds.md"
SECTIONS = ("000", "001", "002", "003", "004")
NOT_YET = "not yet"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_SETTING = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    section: str
    behaviour: str
    setting: str
    test: str


@cache
def rows() -> list[Row]:
    """Read the rows of every table of the page; a row of another width is a fault of the page."""
    found, section = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:6]
        if line.startswith("| ") and not line.startswith("| behaviour |"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, line
            found.append(Row(section, *cells))
    return found


@cache
def names_in(file: str) -> frozenset[str]:
    """Name the tests of a file, those of its classes too, without importing it."""
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_")
    )


def problem_of(setting: str) -> str:
    """Say what is wrong with ``section.key`` or ``section.key = value``; empty where nothing is."""
    path, _, value = setting.partition(" = ")
    table: type[BaseModel] | None = Settings
    for name in path.split("."):
        if table is None or name not in table.model_fields:
            return f"there is no {path}"
        kind = table.model_fields[name].annotation
        table = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    if table is not None:
        return f"{path} is a table"
    if value:
        try:
            Settings.model_validate({"workspace": ROOT, **tomllib.loads(setting)})
        except ValueError as error:
            return f"{setting}: {error}"
    return ""


def test_every_specification_has_its_rows_and_no_row_lacks_a_cell() -> None:
    assert {row.section for row in rows()} == set(SECTIONS)
    assert all(sum(row.section == section for row in rows()) >= 15 for section in SECTIONS)
    said = [(row.section, row.behaviour) for row in rows()]
    assert len(said) == len(set(said))
    for row in rows():
        assert row.behaviour, row
        assert row.setting == "always" or _SETTING.fullmatch(row.setting), row
        assert row.test == NOT_YET or _TEST.fullmatch(row.test), row


def test_every_test_and_setting_that_is_named_exists() -> None:
    named = [(match[1], match[2]) for row in rows() if (match := _TEST.fullmatch(row.test))]

    missing = sorted(
        f"{file}::{name}"
        for file, name in set(named)
        if not (ROOT / file).is_file() or name not in names_in(file)
    )

    assert len(named) > 100
    assert missing == []
    settings = {row.setting.strip("`") for row in rows()} - {"always"}
    assert [problem for setting in sorted(settings) if (problem := problem_of(setting))] == []


def test_every_numbered_scenario_has_one_row_and_a_test() -> None:
    numbered = [row for row in rows() if re.match(r"S7\.\d+ ", row.behaviour)]

    assert [row.behaviour.split()[0] for row in numbered] == [f"S7.{number}" for number in range(1, 19)]
    assert [row for row in numbered if row.test == NOT_YET or row.section != "001"] == []


@pytest.mark.parametrize(
    "setting", ["history.relevanc", "compaction", 'compaction.preset = "overlaid"', "history.last = 0", "a.b"]
)
def test_a_setting_that_does_not_exist_is_found(setting: str) -> None:
    assert problem_of(setting)
