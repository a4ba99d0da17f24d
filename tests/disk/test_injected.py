"""System calls that fail, or kill: what people were promised holds when a gateway starts without that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disk.injected import SYNCS, Fault, broken_by, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(SYNCS, "error=EIO", 12, 3),
        Fault(SYNCS, "signal=SIGKILL", 12),
        Fault("write,pwrite64", "error=ENOSPC", 40, 3),
    ],
    ids=str,
)
async def test_a_gateway_whose_disk_failed_loses_and_repeats_nothing(fault: Fault, tmp_path: Path) -> None:
    found = await broken_by(fault, tmp_path)

    assert found.account.broken == []
    assert found.hits > 0
