"""What is said where no backup can be taken or read: the file by its own name, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.__main__ import main


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "w" / "state").mkdir(parents=True)
    return tmp_path / "w"


def test_a_damaged_database_is_named_as_it_lies_in_the_workspace(
    workspace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (workspace / "state" / "gateway.db").write_bytes(b"no database at all" * 100)

    assert main(["backup", "create", str(tmp_path / "a.tar"), "--workspace", str(workspace)]) == 1

    error, cure = capfd.readouterr().err.splitlines()
    assert error.startswith("error: state/gateway.db is damaged: ")
    assert cure.startswith("try: chat-gateway sessions verify ")
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize(
    ("words", "error", "cure"),
    [
        (("create", "no/a.tar"), "folder {}/no does not exist", "mkdir -p {}/no"),
        (("verify", "a.tar"), "{}/a.tar: No such file or directory", "check the path"),
        (("verify", "w"), "{}/w: Is a directory", "choose a file in this folder"),
        (("restore", "a.tar"), "{}/a.tar: No such file or directory", "check the path"),
    ],
)
def test_a_path_that_is_wrong_is_told_with_its_cure(
    workspace: Path,
    tmp_path: Path,
    words: tuple[str, str],
    error: str,
    cure: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    verb, name = words
    (workspace / "state").rmdir()

    assert main(["backup", verb, str(tmp_path / name), "--workspace", str(workspace)]) == 1

    assert capfd.readouterr().err == f"error: {error}\ntry: {cure}\n".format(tmp_path, tmp_path)
