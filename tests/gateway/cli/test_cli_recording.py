"""Times that a recording is to reach from and to are read, and what is none is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.__main__ import main


@pytest.mark.parametrize("since", ["999999d", "0001-01-01", "9999-12-31T23:59", "yesterday", "24"])
def test_what_is_no_time_is_refused_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], since: str
) -> None:
    day = tmp_path / "day"

    code = main(["--workspace", str(tmp_path / "place"), "record", str(day), "--since", since])

    assert code == 78
    assert f"{since} is no time" in capsys.readouterr().err
    assert not day.exists()
