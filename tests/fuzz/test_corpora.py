"""Every input that is kept is read as it should be, those on which something once broke as well."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import MODULES, target_of
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "failures", "Malformed input from other programs neither crashes nor hangs the gateway."
)


@pytest.mark.parametrize("name", sorted(MODULES))
@pytest.mark.timeout(120)
def test_every_kept_input_is_read(name: str) -> None:
    """Each alone, within its time; the corpus is there."""
    target = target_of(name)
    kept = target.kept()

    with target.opened() as once:
        for file in kept:
            try:
                once(file.read_bytes())
            except Exception as error:
                error.add_note(f"replay: make fuzz TARGET={name} INPUT={file}")
                raise

    assert kept
