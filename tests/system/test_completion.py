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
    """Ask as a shell does, through a file in place of its descriptor."""
    answer = workspace / "answer"
    env = environment(
        _ARGCOMPLETE="1",
        _ARGCOMPLETE_SHELL="zsh",
        _ARGCOMPLETE_SUPPRESS_SPACE="1",
        _ARGCOMPLETE_IFS="\n",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer),
        COMP_LINE=line,
        COMP_POINT=str(len(line)),
        CHAT_GATEWAY_WORKSPACE=str(workspace),
    )
    run(workspace, env=env)
    return answer.read_text().splitlines()


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
    assert [line for line in ask(tmp_path, "chat-gateway cron run ") if not line.startswith("-")] == []


def test_no_application_is_imported_for_it(tmp_path: Path) -> None:
    """A shell asks at each press of a key, so neither models nor platforms may be loaded."""
    run(tmp_path, "chat", "-m", "hi")
    env = environment(PYTHONPROFILEIMPORTTIME="1", CHAT_GATEWAY_WORKSPACE=str(tmp_path))
    env |= {"_ARGCOMPLETE": "1", "COMP_LINE": "chat-gateway sessions show ", "COMP_POINT": "27"}
    env |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer")}

    imported = run(tmp_path, env=env, anew=True).stderr

    assert "gateway.cli.completing" in imported
    assert "pydantic" not in imported
    assert "prompt_toolkit" not in imported


def test_an_unknown_shell_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "completion", "csh")

    assert done.returncode == 2
    assert "bash" in done.stderr
