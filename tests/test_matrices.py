"""Of a long matrix some variants stay in `make test`, and `make chaos-all` runs the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.harness import ROOT
from tests.support.matrices import LATER, ONE_IN, left_to_chaos


@pytest.mark.parametrize("name", [*ONE_IN, *LATER, *LATER.values()])
def test_each_test_that_is_named_is_there(name: str) -> None:
    path, _, function = name.partition("::")

    assert f"def {function}(" in (ROOT / "tests" / path).read_text()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_one_in_so_many_stays_the_last_among_them(count: int) -> None:
    (name,) = (name for name in ONE_IN if name.endswith("going_back_that_dies_happens_once"))
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{name}[{number}]") for number in range(count)]
    items.append(SimpleNamespace(nodeid="tests/system/test_crash.py::test_another"))

    left = {*(item.nodeid for item in left_to_chaos(items))}

    stays = [number for number in range(count) if items[number].nodeid not in left]
    assert stays == sorted(range(count - 1, -1, -ONE_IN[name]))
    assert items[-1].nodeid not in left


def test_a_test_is_left_to_chaos_for_another_that_stays() -> None:
    assert not LATER.keys() & {*LATER.values(), *ONE_IN}
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{name}[1]") for name in {*LATER, *LATER.values()}]

    left = {item.nodeid.removeprefix("tests/").removesuffix("[1]") for item in left_to_chaos(items)}

    assert left == {*LATER}


def test_both_targets_know_the_mark() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert '-m "not chaos" ' in makefile
    assert "-m chaos " in makefile
