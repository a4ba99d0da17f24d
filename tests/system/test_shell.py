"""A running gateway runs a model's commands in a sandbox: told whole, ended by /stop and by its own death."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from session.tools.sandbox import AS_ROOT_CURE, Bubblewrap, Rules
from tests.gateway.service_place import UID, workspace_of_the_service
from tests.session.tools.sandbox_place import SECRET, processes_with
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command, status
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model
from tests.support.until import until

KEY = "web:a"
BUBBLEWRAP = Bubblewrap("/usr/bin/bwrap")
of_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about what root starts")


def on(model: ModelServer, **more: Any) -> dict[str, Any]:
    return with_model(model, **{"tools.shell.enabled": "true", **more})


def calls(command: str, **arguments: Any) -> str:
    return f"please [[tool:shell {json.dumps({'command': command, **arguments})}]]"


def results(workspace: Path) -> list[str]:
    """List what the tool said, as the transcript of the chat has it."""
    paths = sorted((workspace / "sessions").glob("web_a*.jsonl"))
    lines = lines_of(workspace, paths[0].stem)
    return [line["content"] for line in lines if line.get("role") == "tool"]


@pytest.fixture
def tag() -> str:
    return f"98765.{uuid.uuid4().int % 10**12}"


@pytest.mark.ordinary_user
async def test_a_command_runs_in_the_folder_of_its_chat_and_sees_no_other(tmp_path: Path) -> None:
    async with ModelServer() as model:
        config = on(model, **{"model.api_key": SECRET})
        async with Daemon(tmp_path, config=config) as daemon:
            await ask(daemon, "web:b", "0", calls("echo my diary > diary.txt; exit 3"))
            await answer_to(
                daemon,
                KEY,
                "1",
                calls(f"echo x > own.txt; cat {tmp_path}/files/*/*/diary.txt; ls -R {tmp_path}; env")
                + calls("cat own.txt; cat /proc/*/environ; :")
                + calls(
                    "for n in {3..254}; do (: >&$n) 2>&- || (: <&$n) 2>&- && echo open $n; done; "
                    "for f in sys/kernel/core_pattern sysrq-trigger; "
                    "do (: >> /proc/$f) 2>&- && echo $f; done; "
                    "chmod 4755 own.txt 2>&- && echo set-user-id; "
                    "for try in '>> /etc/passwd echo' 'chmod 777 /etc/passwd' 'mount -t tmpfs none /mnt' "
                    f"'kill -0 {os.getppid()}'; do (eval $try) 2>&- && echo $try; done; :"
                ),
            )
            _, printed = await command(tmp_path, "doctor", "--json", config=config)

    told = "\n".join(str(seen.messages) for seen in model.turns if "web:b" not in str(seen.messages))
    assert "exit code: 0\\nstdout:\\nx\\n" in told
    # Nothing that the daemon has open is handed on, and nothing of the machine is open to be changed.
    assert results(tmp_path)[-1] == "exit code: 0"
    assert "exit code: 3" in str(model.turns[1].messages)
    assert [path.read_text() for path in tmp_path.glob("files/chats/*/own.txt")] == ["x\n"]
    for seen in model.turns[2:]:
        assert "my diary" not in str(seen.messages)
        assert SECRET not in str(seen.messages)
    assert "bubblewrap confines commands, without network" in printed
    assert "shell" in model.turns[0].tools


@of_root
async def test_a_gateway_of_root_runs_no_command_and_says_what_to_do(tmp_path: Path) -> None:
    """Neither by the tool nor as a server of tools."""
    roots = tmp_path / "roots"
    roots.write_text("before")
    async with ModelServer() as model:
        config = on(model, mcp={"sleeper": {"command": ["/bin/sleep", "60"]}})
        async with Daemon(tmp_path, config=config) as daemon:
            await daemon.said("sandbox.missing")
            await ask(daemon, KEY, "1", calls(f"echo after > {roots}; echo x > /proc/sys/kernel/hostname"))

            async def tried() -> bool:
                return bool((await status(daemon))["parts"]["mcp.sleeper"].get("hint"))

            await until(tried, 60)
            part = (await status(daemon))["parts"]["mcp.sleeper"]
            _, checked = await command(tmp_path, "doctor", "--json", config=config)
            _, warned = await command(tmp_path, "config", "check", "--json", config=config)
        log = daemon.log.decode()
    [said] = results(tmp_path)

    refused = "the gateway runs as root, and commands never run as root"
    assert said == f"error: no command can be run: {refused}; the owner's cure: {AS_ROOT_CURE}"
    assert roots.read_text() == "before"
    assert refused in log
    assert AS_ROOT_CURE in log
    assert (part["up"], part["hint"]) == (False, AS_ROOT_CURE)
    found = {check["name"]: (check["level"], check["text"], check["cure"]) for check in json.loads(checked)}
    assert found["tools"] == ("fail", f"shell refuses every command: {refused}", AS_ROOT_CURE)
    assert found["mcp.sleeper"] == ("fail", f"not started: {refused}", AS_ROOT_CURE)
    assert f"tools: {refused}; {AS_ROOT_CURE}" in json.loads(warned)["warnings"]


@of_root
async def test_root_leaves_the_trial_to_the_user_of_the_gateway() -> None:
    """What root cannot try is no fault of a service that runs as somebody else."""
    async with ModelServer() as model:
        config = on(model, mcp={"sleeper": {"command": ["/bin/sleep", "60"]}})
        with workspace_of_the_service() as workspace:
            _, checked = await command(workspace, "doctor", "--json", config=config)
            _, warned = await command(workspace, "config", "check", "--json", config=config)

    found = {check["name"]: check for check in json.loads(checked)}
    for name in ("tools", "mcp.sleeper"):
        assert found[name]["level"] == "warn"
        assert found[name]["text"].startswith(
            f"not tested: the gateway runs as {UID}, and commands of a model never run as root"
        )
        assert found[name]["cure"] == f"sudo -u {UID} chat-gateway doctor"
    assert json.loads(warned)["warnings"] == []


@of_root
def test_what_confines_a_command_starts_none_as_root(tmp_path: Path) -> None:
    wrapped = BUBBLEWRAP.wrap(["/bin/touch", "ran"], Rules(tmp_path))

    done = subprocess.run(
        wrapped.argv, env=dict(wrapped.env), cwd=wrapped.cwd, stderr=subprocess.PIPE, check=False
    )

    assert done.returncode == 125
    assert done.stderr == b"[sandbox] the command was not started: root is not a user for commands\n"
    assert list(tmp_path.iterdir()) == []


@of_root
def test_a_capability_of_the_gateway_is_none_of_its_commands() -> None:
    code = "import ctypes; c = (ctypes.c_uint32 * 6)(); h = (ctypes.c_uint32 * 2)(0x20080522)\n"
    code += "print(ctypes.CDLL(None).capget(h, c), *c)"
    user = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    with workspace_of_the_service() as workspace:
        wrapped = BUBBLEWRAP.wrap(["/usr/bin/python3", "-c", code], Rules(workspace))
        # The Python of the tests may lie in root's home.
        argv = [
            *user,
            "--inh-caps=+net_admin",
            "--ambient-caps=+net_admin",
            "/usr/bin/python3",
            *wrapped.argv[1:],
        ]

        done = subprocess.run(argv, env=dict(wrapped.env), cwd="/", capture_output=True, check=False)

    assert done.stdout == b"0 0 0 0 0 0 0\n", done.stderr


@guarantee("security", "A command of a killed gateway ends with it and does not run again.")
@pytest.mark.ordinary_user
async def test_a_killed_daemon_takes_its_command_with_it_and_runs_it_never_again(
    tmp_path: Path, tag: str
) -> None:
    """``/stop`` ends one with its children as well, and the chat goes on."""
    async with ModelServer() as model, Daemon(tmp_path, config=on(model)) as daemon:
        turn = asyncio.create_task(ask(daemon, "web:b", "1", calls(f"setsid sleep {tag} & sleep {tag}")))
        await until(lambda: len(_sleeping(tag)) == 2)
        await ask(daemon, "web:b", "2", "/stop")
        await until(lambda: not _sleeping(tag))
        await turn
        again = await answer_to(daemon, "web:b", "3", "still there?")

        words = calls(f"echo run >> runs.txt; (setsid sleep {tag} &); sleep {tag}")
        turn = asyncio.create_task(ask(daemon, KEY, "1", words))
        await until(lambda: len(_sleeping(tag)) == 2)

        await daemon.kill()

        await until(lambda: not _sleeping(tag))
        await turn
        await daemon.start()
        await answer_to(daemon, KEY, "1", words)

    assert again["reply"] == "stub: still there?"
    assert [path.read_text() for path in tmp_path.glob("files/chats/*/runs.txt")] == ["run\n"]
    assert "outcome unknown" in results(tmp_path)[0]


@pytest.mark.ordinary_user
async def test_without_a_sandbox_a_command_is_refused_and_the_turn_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    async with ModelServer() as model:
        config = on(model)
        async with Daemon(tmp_path, config=config, anew=True) as daemon:
            await daemon.said("sandbox.missing")
            await answer_to(daemon, KEY, "1", calls("touch x"))
            code, printed = await command(tmp_path, "doctor", "--json", config=config)

    [said] = results(tmp_path)
    assert said == (
        "error: no command can be run: bubblewrap is not installed; "
        "the owner's cure: apt-get install bubblewrap"
    )
    assert not list(tmp_path.glob("files/**/x"))
    assert "shell refuses every command: bubblewrap is not installed" in printed
    assert code == 1


@pytest.mark.ordinary_user
async def test_what_is_said_is_cut_in_the_middle(tmp_path: Path) -> None:
    async with ModelServer() as model, Daemon(tmp_path, config=on(model)) as daemon:
        flood = "echo first; yes grüße 2>/dev/null | head -c 50000000; echo last; echo error >&2"
        await ask(daemon, KEY, "1", calls(flood) + calls("echo early; sleep 60", timeout_s=1))

    whole, timed = results(tmp_path)
    assert whole.startswith("exit code: 0\nstdout:\nfirst\n")
    assert whole.endswith("last\n\nstderr:\nerror\n")
    assert "bytes left out" in whole
    assert len(whole.encode()) <= 64 * 1024
    assert timed == "killed after 1 s: time limit\nstdout:\nearly\n"


def _sleeping(tag: str) -> list[int]:
    """List the processes that sleep so long, not those whose command says that they will."""
    found = []
    for pid in processes_with(tag):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                found.append(pid)
        except OSError:
            continue
    return found
