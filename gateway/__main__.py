"""The program's entry: runs a command line, puts its errors into words."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from gateway.cli.root import GlobalOptions, execute


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    _open_what_is_shut()
    words = sys.argv[1:] if argv is None else argv
    return run(lambda opts: execute(words, opts))


def run(work: Callable[[GlobalOptions], int]) -> int:
    """Do the work of a command, put an error of it into words, and return the exit code."""
    opts = GlobalOptions()
    try:
        code = work(opts)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left, as `head` does: it has what it wanted.
        _abandon_stdout()
        return 0
    except Exception as error:  # noqa: BLE001 - here one command ends
        # Help and usage answer at once because nothing of the configuration is imported for them.
        from gateway.cli import output

        code = output.report(error, opts)
        try:
            sys.stdout.flush()
        except OSError:
            # The disk behind it is full, perhaps.
            _abandon_stdout()
    return code


def _open_what_is_shut() -> None:
    """Give each standard stream that the caller left shut an end: else the next file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free: the one that is missing.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _abandon_stdout() -> None:
    """Let what is still to be written go nowhere, so that the exit does not stumble over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
