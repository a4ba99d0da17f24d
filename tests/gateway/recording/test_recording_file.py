"""A recording is written whole or not at all, and read as it was written; what is none is told so."""

from __future__ import annotations

import json
import os
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.errors import GatewayError
from gateway.recording import letter
from gateway.recording.letter import Letter, NewerRecording, Recording
from gateway.recording.outcome import Outcome

AT = datetime(2026, 11, 27, 8, tzinfo=UTC)


def recording(*letters: Letter) -> Recording:
    return Recording(AT, AT + timedelta(hours=1), list(letters), {"edits": 2}, "workspace")


def asked(text: str = "hello", key: str = "telegram:1", **more: object) -> Letter:
    ended = Outcome("answered", AT, AT + timedelta(seconds=2), 12, 3, 0.25, 1)
    fields = {"outcome": ended, "reply": "hi", "sender": "Ada", "files": ("a.png",), **more}
    return Letter(key, "1", AT, text, **fields)  # type: ignore[arg-type]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = recording(asked("a\nb \ud800 ☃"), asked(outcome=Outcome("open")))

    letter.write(tmp_path / "day", whole)

    assert letter.read(tmp_path / "day") == whole
    assert (tmp_path / "day").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["day"]


def test_what_stands_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "day").write_text("mine")

    with pytest.raises(FileExistsError):
        letter.write(tmp_path / "day", recording())

    assert (tmp_path / "day").read_text() == "mine"


def test_one_of_a_newer_version_is_refused_with_78(tmp_path: Path) -> None:
    letter.write(tmp_path / "day", recording())
    head = json.loads((tmp_path / "day").read_text())
    (tmp_path / "day").write_text(json.dumps(head | {"v": 2}) + "\n")

    with pytest.raises(NewerRecording) as error:
        letter.read(tmp_path / "day")

    assert error.value.exit_code == 78


@pytest.mark.parametrize("content", ["", "{}\n", "[1]\n", "\x00\xff", '{"v":1,"kind":"other"}\n', "[" * 9999])
def test_what_is_none_is_told_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "day").write_bytes(content.encode("latin-1"))

    with pytest.raises(GatewayError, match="is no recording"):
        letter.read(tmp_path / "day")


def test_one_that_lacks_letters_or_has_others_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "day"
    letter.write(path, recording(asked(), asked()))
    lines = path.read_bytes().splitlines(keepends=True)

    path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(GatewayError, match="1 of 2 letters"):
        letter.read(path)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    with pytest.raises(GatewayError, match="line 3 is no letter"):
        letter.read(path)
    path.write_bytes(lines[0] + lines[1] + lines[2].replace(b'"answered"', b'"baked"'))
    with pytest.raises(GatewayError, match="line 3 is no letter"):
        letter.read(path)


def test_a_file_without_an_end_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "day").touch()
    os.truncate(tmp_path / "day", 64 * 2**20)

    tracemalloc.start()
    try:
        with pytest.raises(GatewayError, match="is no recording"):
            letter.read(tmp_path / "day")
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_file_without_an_end_holds_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letter.write(tmp_path / "day", recording(asked()))
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 2**42)
    token = ("--token-file", str(tmp_path / "endless"), "--workspace", str(tmp_path))

    assert main(["replay", str(tmp_path / "day"), "--into", "http://127.0.0.1:9", *token]) == 1

    assert f"error: {tmp_path / 'endless'}: over 65536 bytes" in capsys.readouterr().err
