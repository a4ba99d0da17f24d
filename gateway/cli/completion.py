"""``completion``: the scripts with which shells complete command lines, and the answers to them."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from gateway.cli.root import COMPLETES, PROGRAM, GlobalOptions, Verb, cli


@add_completion_class
class _Bash(BashComplete):
    """Puts words such as ``cli:garden`` together, of which bash completes what follows the colon alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and what is there of that one."""
        at = int(os.environ["COMP_CWORD"])
        given = split_arg_string(os.environ["COMP_WORDS"])[1 : at + 1]
        words: list[str] = []
        for word in [*given, ""] if len(given) < at else given:
            if words and (word.startswith(":") or (words[-1].endswith(":") and word)):
                words[-1] += word
            else:
                words.append(word)
        self._begun = words.pop()
        return words, self._begun

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Leave out what stands before the last colon that is typed."""
        return f"{item.type},{str(item.value)[self._begun.rfind(':') + 1 :]}"


def answer(instruction: str) -> int:
    """Write what may follow to the shell that asks by its variables; return the exit code."""
    return shell_complete(cli, {"obj": GlobalOptions()}, PROGRAM, COMPLETES, instruction)


@click.command(cls=Verb)
@click.argument("shell", metavar="SHELL", type=click.Choice(("bash", "zsh", "fish")), help="bash, zsh, fish")
def completion(_: GlobalOptions, shell: str) -> None:
    """Print the completion script for a shell.

    bash: source <(chat-gateway completion bash); zsh: the same, after compinit; fish: chat-gateway completion
    fish | source.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, PROGRAM, COMPLETES).source().strip("\n"))
