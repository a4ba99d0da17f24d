"""Of a long matrix some variants stay in `make test`, and `make chaos-all` runs the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.harness import ROOT
from tests.support.matrices import LATER, ONE_IN, left_to_chaos


def test_each_test_that_is_named_is_there() -> None:
    named = [name.partition("::") for name in (*ONE_IN, *LATER, *LATER.values())]

    assert [name for name in named if f"def {name[2]}(" not in (ROOT / "tests" / name[0]).read_text()] == []


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
    makefile = (ROOT / "Makefile").read_text()

    assert '-m "not chaos" ' in makefile
    assert "-m chaos " in makefile
