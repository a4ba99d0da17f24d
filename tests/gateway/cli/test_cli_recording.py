"""What is no time is told so, and no gateway is asked again what it was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.app.daemons import DaemonRegistry


@pytest.mark.parametrize("since", ["999999d", "0001-01-01", "9999-12-31T23:59", "yesterday", "24"])
def test_what_is_no_time_is_refused_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], since: str
) -> None:
    day = tmp_path / "day"

    code = main(["--workspace", str(tmp_path / "place"), "record", str(day), "--since", since])

    assert code == 78
    assert f"{since} is no time" in capsys.readouterr().err
    assert not day.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.9"])
def test_the_gateway_that_was_recorded_is_refused_by_each_of_its_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    place, day = tmp_path / "place", tmp_path / "day"
    assert main(["--workspace", str(place), "record", str(day)]) == 0
    with DaemonRegistry(place).entry(url="http://127.0.0.1:9", role="run"):
        code = main(["--workspace", str(place), "replay", str(day), "--into", f"http://{host}:9"])

    assert code == 1
    assert "is the gateway that was recorded" in capsys.readouterr().err
