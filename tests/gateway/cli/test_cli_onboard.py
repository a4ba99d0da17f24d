"""`onboard` without questions: what is answered by options is written down, or refused by its own name."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from gateway.__main__ import main


def onboard(folder: Path, *words: str) -> int:
    places = ("--config", str(folder / "c.toml"), "--workspace", str(folder / "w"))
    return main(["onboard", "--yes", *words, *places])


def test_echo_takes_the_place_of_the_model_that_was_configured(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('# mine\n[model]\nname = "openai/x"  # real\n')

    assert onboard(tmp_path, "--model", "echo", "--platform", "none", "--dry-run") == 0
    assert '"openai/x"' in (tmp_path / "c.toml").read_text()
    assert onboard(tmp_path, "--model", "echo", "--platform", "none") == 0

    assert (tmp_path / "c.toml").read_text() == '# mine\n[model]\nname = "echo"  # real\n'


@pytest.mark.parametrize(
    ("words", "error", "cure"),
    [
        (
            ("--model", "openai/x", "--api-base", "nonsense"),
            "model.api_base: expected an address that begins with http:// or https://",
            "pass another --api-base",
        ),
        (
            ("--model", "echo", "--platform", "telegram"),
            "no bot token for telegram",
            "pass the file that contains it: --token-file FILE",
        ),
    ],
)
def test_what_no_question_can_mend_ends_it(
    tmp_path: Path, words: tuple[str, ...], error: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert onboard(tmp_path, *words) == 1

    assert capsys.readouterr().err.splitlines()[-2:] == [f"error: {error}", f"try: {cure}"]
    assert not (tmp_path / "c.toml").exists()


def test_an_address_that_is_none_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No question asks for it, so that each further answer would meet the same refusal."""
    monkeypatch.setattr("sys.stdin", io.StringIO("openai/x\na-key\n"))

    assert main(["onboard", "--api-base", "nonsense", "--config", str(tmp_path / "c.toml")]) == 1

    assert "API key" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--key-file", "--token-file"])
def test_a_file_without_an_end_holds_no_secret(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = tmp_path / "endless"
    endless.touch()
    os.truncate(endless, 2**42)
    model = "openai/x" if option == "--key-file" else "echo"

    assert onboard(tmp_path, "--model", model, "--platform", "telegram", option, str(endless)) == 1

    error, cure = capsys.readouterr().err.splitlines()[-2:]
    assert error == f"error: {endless} cannot be read: over 65536 bytes"
    assert cure == "try: choose another file"
