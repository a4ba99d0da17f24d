"""Command lines, parsed and not run."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import click

from gateway.cli.root import PROGRAM, GlobalOptions, cli


def parsed(words: Sequence[str]) -> SimpleNamespace:
    """Return the options of a command line, with ``config`` and ``workspace``.

    Raises:
        click.UsageError, click.exceptions.Exit: it makes no sense; it asks for help.
    """
    opts = GlobalOptions()
    context = cli.make_context(PROGRAM, list(words), obj=opts)
    while isinstance(context.command, click.Group):
        remaining = [*context._protected_args, *context.args]
        if not remaining:
            context.fail("Missing command.")
        name, command, rest = context.command.resolve_command(context, remaining)
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return SimpleNamespace(**context.params, **vars(opts))
