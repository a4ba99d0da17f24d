"""What a newcomer types first is answered with what to type next."""

from __future__ import annotations

import pytest

from gateway.__main__ import main


@pytest.mark.parametrize("argv", [[], ["--workspace", "/somewhere"]])
def test_the_bare_program_names_the_first_commands(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A short help on stderr, exit 2, no error."""
    code = main(argv)
    out, words = capsys.readouterr()

    assert (code, out) == (2, "")
    assert "error" not in words
    assert [line.split()[1] for line in words.splitlines() if line.startswith("  chat-gateway")] == [
        "onboard",
        "run",
        "chat",
        "doctor",
    ]
    assert len(words.splitlines()) < 12


@pytest.mark.parametrize(
    ("argv", "cure"),
    [
        (["chat", "hello"], "chat-gateway chat -m hello"),
        (["chat", "how", "are you?", "--key", "cli:x"], "chat-gateway chat -m 'how are you?'"),
        (["chat", "-m", "hello", "you"], "chat-gateway chat --help"),
        (["chat", "--mesage", "hello"], "chat-gateway chat --message"),
        (["status", "now"], "chat-gateway status --help"),
    ],
)
def test_a_message_without_its_option(argv: list[str], cure: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`chat hello` is told how it goes; other strays are not taken for messages."""
    assert main(argv) == 2
    assert capsys.readouterr().err.endswith(f"\ntry: {cure}\n")
