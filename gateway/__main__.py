"""The program's entry: reads the command line, runs the verb, puts its errors into words."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from gateway.cli import parser
from gateway.config.finding import adopt_environment


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line, run its verb and return the exit code."""
    _open_what_is_shut()
    if "_ARGCOMPLETE" in os.environ:
        # A shell asks, and it does so at each press of a key.
        from gateway.cli import completing

        completing.answer(parser.build())
    return run(parser.parse(argv))


def run(args: argparse.Namespace) -> int:
    """Import the code of the verb, which nothing before has, run it and return the exit code."""
    module, _, function = args.handler.partition(":")
    # Whatever is made in a workspace is its owner's alone.
    os.umask(0o077)
    adopt_environment(getattr(args, "config", None))
    try:
        code: int = getattr(importlib.import_module(module), function)(args)
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

        code = output.report(error, args)
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
