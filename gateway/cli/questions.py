"""Asks a person: at a terminal or through a plain pipe, with answers from flags where a script gave them."""

from __future__ import annotations

import contextlib
import getpass
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.cli import output
from gateway.errors import GatewayError


class Questions:
    """Reads answers from stdin, one a line; questions go to stderr.

    Args:
        yes: nobody is asked: each question has its default for an answer.
    """

    def __init__(self, *, yes: bool) -> None:
        self.yes = yes

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Show nothing that is typed while nobody asks, and forget it: it may be a secret."""
        with _echo(on=False):
            yield

    @property
    def may_repeat(self) -> bool:
        """Whether an answer that was no good can be given again."""
        return not self.yes

    def text(self, question: str, default: str = "") -> str:
        """Return a line; ``default`` for an empty one.

        Raises:
            GatewayError: stdin has ended.
        """
        if self.yes:
            return default
        return self._line(f"{question} [{default}]: " if default else f"{question}: ").strip() or default

    def secret(self, question: str) -> str:
        """Return a line that a terminal does not show; nothing where nobody is asked."""
        if self.yes:
            return ""
        if sys.stdin.isatty():
            try:
                return getpass.getpass(f"{question}: ", stream=sys.stderr).strip()
            except EOFError:
                raise _ended() from None
        return self._line(f"{question}: ").strip()

    def agreed(self, question: str, *, default: bool) -> bool:
        """Return whether the answer is yes; by ``default`` for an empty one."""
        said = self.text(f"{question} [{'Y/n' if default else 'y/N'}]").lower()
        return said in ("y", "yes") if said else default

    def _line(self, prompt: str) -> str:
        with _echo(on=True):
            sys.stderr.write(output.plain(prompt))
            sys.stderr.flush()
            line = sys.stdin.readline() if sys.stdin is not None else ""
        if not sys.stdin.isatty():
            sys.stderr.write("\n")
        if not line:
            raise _ended()
        return line


@contextmanager
def _echo(*, on: bool) -> Iterator[None]:
    """Have the terminal show what is typed, or not; nothing where stdin is none."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    now = [*before]
    now[3] = now[3] | termios.ECHO if on else now[3] & ~termios.ECHO
    # What was typed before is dropped as the mode changes.
    termios.tcsetattr(fd, termios.TCSAFLUSH, now)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSAFLUSH if not on else termios.TCSADRAIN, before)


def _ended() -> GatewayError:
    return GatewayError(
        "the input has ended; all settings written so far are kept",
        hint="run chat-gateway onboard to continue",
    )
