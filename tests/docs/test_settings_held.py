"""Every setting that docs/seeds.md names is held by a test of a running gateway that says so by a marker.

``tests/system/settings_place.py`` sees that such a test sets what it is marked with in its file. The tests
are read here and not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.test_seeds import rows

SYSTEM = Path(__file__).resolve().parent.parent / "system"
MARKER = "pytest.mark.setting"


def held_in(source: str) -> Iterator[str]:
    """Yield the settings with which the tests of a module are marked."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARKER:
                named = (one for argument in mark.args for one in ast.walk(argument))
                yield from (str(one.value) for one in named if isinstance(one, ast.Constant))


def test_every_setting_is_held_by_a_test_of_a_running_gateway() -> None:
    named = {row.setting.strip("`") for row in rows()} - {"always"}
    held = {setting for path in SYSTEM.glob("test_*.py") for setting in held_in(path.read_text())}

    assert len(named) > 40
    assert sorted(named - held) == [], "mark a test in tests/system that sets them and sees their effects"
    assert sorted(held - named) == [], "docs/seeds.md names no such setting"
