"""Names that a shell is offered: what somebody can type, whatever lies in the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import known


@pytest.mark.parametrize("odd", ["cli:\udcff", "cli:a\nb", "cli:\x1b[2J"])
def test_a_key_that_nobody_can_type_is_not_offered_and_hides_no_other(tmp_path: Path, odd: str) -> None:
    """Half of a surrogate pair cannot be written: the shell got no name at all."""
    (tmp_path / "sessions").mkdir()
    for number, key in enumerate((odd, "cli:größe")):
        head = json.dumps({"_type": "metadata", "key": key, "metadata": {}})
        (tmp_path / "sessions" / f"{number}.jsonl").write_text(f"{head}\n")

    assert list(known.keys(tmp_path)) == ["cli:größe"]
