"""``chat -m`` with something on stdin: it is part of the message, or it is said that it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import forked
from tests.system.terminal import WITHIN_S, command, environment, run


@pytest.mark.parametrize(
    ("given", "stdin", "reply", "error"),
    [
        ("-", "one\ntwo\n", "echo: one\ntwo\n", ""),
        ("sum up:", "a page\nof text\n", "echo: sum up:\n\na page\nof text\n", ""),
        ("hello", "\n \n", "echo: hello\n", ""),
        ("-", " \n", "", "the message is empty"),
        ("-", "x" * (2**21 + 1), "", "stdin is larger than 2 MiB"),
    ],
    ids=["alone", "behind", "blank", "empty", "large"],
)
def test_a_pipe_is_part_of_the_message(
    tmp_path: Path, given: str, stdin: str, reply: str, error: str
) -> None:
    """`-` is stdin alone; a text comes before what is piped in; nothing and too much are not sent."""
    done = run(tmp_path, "chat", "-m", given, stdin=stdin)

    assert (done.returncode, done.stdout) == (1 if error else 0, reply), done.stderr
    assert error in done.stderr
    assert (tmp_path / "sessions" / "cli_direct.jsonl").exists() == (not error)


def test_a_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A redirected file is read as a pipe is; what is no UTF-8 becomes a replacement character."""
    (tmp_path / "notes").write_bytes(b"caf\xe9\n")
    with (tmp_path / "notes").open("rb") as notes:
        done = forked.run(
            command(tmp_path, "chat", "-m", "look"),
            stdin=notes,
            timeout=WITHIN_S,
            env=environment(),
            cwd=tmp_path,
        )

    assert (done.returncode, done.stdout.decode()) == (0, "echo: look\n\ncaf\ufffd\n")


def test_a_pipe_that_nobody_closes_is_left_out_and_said(tmp_path: Path) -> None:
    """A caller that never writes and never closes does not hold the message up."""
    reading, writing = os.pipe()
    try:
        done = forked.run(
            command(tmp_path, "chat", "-m", "hello"),
            stdin=reading,
            text=True,
            timeout=WITHIN_S,
            env=environment(),
            cwd=tmp_path,
        )
    finally:
        os.close(reading)
        os.close(writing)

    assert (done.returncode, done.stdout) == (0, "echo: hello\n")
    assert "stdin is open but sent nothing, so it is ignored" in done.stderr
