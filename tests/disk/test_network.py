"""On a network's disk that delays, caches and loses locks: a writer that lost its key changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.disk.lost_leases import Machines, every_step
from tests.disk.mount import why_not
from tests.session.nursery import OPS
from tests.session.store.test_fence import Nursery
from tests.support.guarantee import guarantee

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    guarantee(
        "writer", "A process that lost its lock on a network disk changes nothing, whatever its cache holds."
    ),
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    machines = Machines(tmp_path_factory.mktemp("network"), "abc")
    yield machines
    machines.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.mark.parametrize("op", OPS)
async def test_who_lost_its_lock_changes_nothing(machines: Machines, nursery: Nursery, op: str) -> None:
    """The new owner's readers see nothing of it; ``make chaos-disk`` takes every step, not each sixth."""
    ends = await every_step(machines, nursery, op, every=6, first=3)

    assert ends["fenced"] or op in ("append", "compact"), ends
    assert ends["fenced"] + ends["done before"] + ends["behind the other"] > 0
