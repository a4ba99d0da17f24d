"""Command lines completed by real shells: verbs by the parser, keys and ids from the files of a workspace."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.terminal import Terminal, environment, run

PROGRAMS = str(Path(sys.executable).parent)
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(chat-gateway completion bash)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit && compinit -D && source <(chat-gateway completion zsh)",
    ),
    "fish": (["fish", "--no-config", "-i"], "chat-gateway completion fish | source"),
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One conversation, and one job."""
    home = tmp_path_factory.mktemp("w")
    run(home, "chat", "-m", "hello", "--key", "cli:garden")
    run(home, "cron", "add", "--every", "2h", "--message", "look")
    return home


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, workspace: Path) -> Iterator[Terminal]:
    program, loading = SHELLS[request.param]
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    path = f"{PROGRAMS}:{os.environ['PATH']}"
    env = environment(PATH=path, TERM="xterm", HOME=str(workspace), CHAT_GATEWAY_WORKSPACE=str(workspace))
    terminal = Terminal(program, workspace, env)
    # No shell shows the two halves of this together but as the command's output.
    terminal.write(f"{loading}; echo lo''aded\r")
    terminal.until("loaded")
    yield terminal
    terminal.close()


def test_a_verb_and_a_key_are_completed(shell: Terminal) -> None:
    shell.write("chat-gateway sess\tsh\tcli:g\t\r")

    shell.until(": hello")


def test_a_job_is_completed(shell: Terminal, workspace: Path) -> None:
    (job,) = json.loads((workspace / "cron" / "jobs.json").read_text())["jobs"]

    shell.write(f"chat-gateway cron run {job['id'][:4]}\t")

    shell.until(job["id"])


def ask(workspace: Path, line: str) -> list[str]:
    """Ask as zsh does; each answer has three lines, the second is the word."""
    return run(workspace, env=asking(workspace, line)).stdout.splitlines()


def asking(workspace: Path, line: str) -> dict[str, str]:
    return environment(
        _CHAT_GATEWAY_COMPLETE="zsh_complete",
        COMP_WORDS=line,
        COMP_CWORD=str(line.count(" ")),
        CHAT_GATEWAY_WORKSPACE=str(workspace),
    )


def test_damaged_files_and_hostile_names_offer_nothing_bad(tmp_path: Path) -> None:
    """What cannot be read is left out; a name steers no terminal."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    head = {"_type": "metadata", "key": "cli:good", "metadata": {"name": "a\x1b]0;owned\x07b\nc"}}
    (folder / "cli_good.jsonl").write_text(json.dumps(head) + "\n")
    (folder / "cli_torn.jsonl").write_text('{"key": "cli:torn"')
    (folder / "cli_list.jsonl").write_text("[1]\n")
    (tmp_path / "cron").mkdir()
    (tmp_path / "cron" / "jobs.json").write_text("{")

    keys = ask(tmp_path, "chat-gateway sessions show ")

    assert [line.partition("\\:")[0] for line in keys if "good" in line] == ["cli"]
    assert not any("\x1b" in line or "\x07" in line or "torn" in line for line in keys)
    assert not any(ask(tmp_path, "chat-gateway cron run "))


def test_no_application_is_imported_for_it(tmp_path: Path) -> None:
    """A shell asks at each press of a key, so neither models nor platforms may be loaded."""
    run(tmp_path, "chat", "-m", "hi")
    env = asking(tmp_path, "chat-gateway sessions show ") | {"PYTHONPROFILEIMPORTTIME": "1"}

    imported = run(tmp_path, env=env, anew=True).stderr

    assert "gateway.cli.root" in imported
    assert "pydantic" not in imported
    assert "prompt_toolkit" not in imported
