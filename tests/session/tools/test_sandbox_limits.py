"""What a confined command uses is bounded, and nothing that it started outlives it, whoever dies."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from session.tools.sandbox.rules import NoSandbox
from session.tools.sandbox.sandbox import SandboxOfDaemon, sandbox_here
from tests.session.tools.sandbox_place import KINDS, Yard, processes_with, yard
from tests.support.guarantee import guarantee
from tests.support.until import until

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.ordinary_user,
    guarantee(
        "security", "A sandboxed command has bounded resources, and nothing that it started outlives it."
    ),
]
# Ways to go on after the command: each starts something whose arguments hold "$T".
LEFT_BEHIND = {
    "in the background": "sleep $T & echo started",
    "in a session of its own": "setsid sleep $T & echo started",
    "twice forked": "(setsid sh -c '(sleep $T &) ; exit' &) ; sleep 0.2; echo started",
    "that takes no signal": "(trap '' TERM INT HUP; setsid sleep $T) & echo started",
}


@pytest.fixture(params=KINDS)
async def there(request: pytest.FixtureRequest, tmp_path: Path) -> Yard:
    return await yard(request.param, tmp_path)


@pytest.fixture
def tag() -> str:
    """A number of seconds that no other process sleeps."""
    return f"98765.{uuid.uuid4().int % 10**12}"


@pytest.mark.parametrize("way", LEFT_BEHIND)
async def test_nothing_outlives_the_command(there: Yard, tag: str, way: str) -> None:
    outcome = await there.sh(LEFT_BEHIND[way].replace("$T", tag))

    assert (outcome.exit_code, outcome.out.text()) == (0, "started\n")
    assert list(processes_with(tag)) == []


@pytest.mark.parametrize("way", LEFT_BEHIND)
async def test_nothing_outlives_its_time(there: Yard, tag: str, way: str) -> None:
    outcome = await there.sh(LEFT_BEHIND[way].replace("$T", tag) + f"; sleep {tag}", timeout_s=1.5)

    assert (outcome.exit_code, outcome.out.text()) == (None, "started\n")
    assert list(processes_with(tag)) == []


async def test_whoever_cancels_ends_everything(there: Yard, tag: str) -> None:
    running = asyncio.create_task(there.sh(f"setsid sleep {tag} & sleep {tag}"))
    await until(lambda: len(list(processes_with(tag))) >= 2)

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert [pid for pid in processes_with(tag) if not _is_ours(pid)] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_killing_whoever_started_it_ends_everything(kind: str, tmp_path: Path, tag: str) -> None:
    """No handler runs then: the kernel tells the launcher."""
    code = (
        "import asyncio, pathlib, sys\n"
        "from tests.session.tools.sandbox_place import yard\n"
        "async def main():\n"
        f"    there = await yard({kind!r}, pathlib.Path({str(tmp_path)!r}))\n"
        f"    await there.sh('setsid sleep {tag} & (setsid sh -c \"(sleep {tag} &)\" &); sleep {tag}')\n"
        "asyncio.run(main())\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    await until(lambda: len([pid for pid in processes_with(tag) if b"sleep\0" in _words(pid)]) >= 3)

    victim.send_signal(signal.SIGKILL)
    victim.wait(30)

    await until(lambda: not list(processes_with(tag)))
    assert victim.returncode == -signal.SIGKILL


async def test_a_fork_bomb_ends_alone(there: Yard, tag: str) -> None:
    outcome = await there.sh(f"bomb() {{ bomb | bomb & }}; bomb; sleep {tag}", timeout_s=20)

    assert "Resource temporarily unavailable" in outcome.err.text() or "64 processes" in outcome.err.text()
    assert list(processes_with(tag)) == []
    assert subprocess.run(["/bin/true"], check=True).returncode == 0


async def test_memory_is_bounded_in_one_process_and_in_all_together(there: Yard) -> None:
    alone = await there.python("x = bytearray(300 * 2**20)")
    shared = await there.python(
        "import mmap, time\nx = mmap.mmap(-1, 2**30)\nfor n in range(2**18): x[n * 4096] = 1\ntime.sleep(60)"
    )
    several = await there.python(
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0: break\n"
        "x = bytearray(b'x') * (100 * 2**20)\ntime.sleep(60)"
    )

    assert "MemoryError" in alone.err.text()
    assert "[sandbox] ended: over 256 MB of memory" in shared.err.text()
    assert "[sandbox] ended: over 256 MB of memory" in several.err.text()
    assert (shared.exit_code, several.exit_code) == (137, 137)


async def test_a_flood_of_output_takes_no_memory(there: Yard) -> None:
    """Both ends of a gigabyte are kept, the middle is counted."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    outcome = await there.sh("echo first; head -c 1073741824 /dev/zero; echo last", timeout_s=120)

    text = outcome.out.text()
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    assert outcome.out.bytes == 2**30 + 11
    assert len(text) < 70_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


async def test_a_file_is_bounded(there: Yard) -> None:
    limits = there.rules.limits.__class__(file_bytes=2**20)

    outcome = await there.sh("trap '' XFSZ; head -c 5000000 /dev/zero > big; ls -s big", limits=limits)

    assert (there.folder / "big").stat().st_size == 2**20
    assert "File too large" in outcome.err.text()


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
async def test_its_end_is_told(there: Yard, command: str, code: int) -> None:
    assert (await there.sh(command)).exit_code == code


async def test_a_long_command_in_any_script_runs(there: Yard) -> None:
    """Of odd bytes, too, which a path may hold."""
    outcome = await there.sh("echo " + "я" * 23_000)
    odd = await there.sh("echo " + os.fsdecode(b"\xff\xc3") + "'\U0001f600'")

    assert (outcome.exit_code, outcome.out.text()) == (0, "я" * 23_000 + "\n")
    assert (odd.exit_code, odd.out.text()) == (0, b"\xff\xc3\xf0\x9f\x98\x80\n".decode("utf-8", "replace"))


@pytest.mark.parametrize("unit", ["я", "\x01"])
async def test_one_that_is_too_long_for_the_system_is_told(there: Yard, unit: str) -> None:
    with pytest.raises(NoSandbox, match="the command ") as caught:
        await there.sh("echo " + unit * 40_000)

    assert caught.value.hint == "put it into a file and run that"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_that_is_not_there_is_told(kind: str, tmp_path: Path) -> None:
    there = await yard(kind, tmp_path)
    wrapped = there.sandbox.wrap(["no-such-program"], there.rules)
    process = await asyncio.create_subprocess_exec(
        *wrapped.argv, env=dict(wrapped.env), cwd=wrapped.cwd, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()

    assert process.returncode in (125, 127)
    assert b"no-such-program" in said


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_is_talked_with_ends_when_its_input_does(kind: str, tmp_path: Path) -> None:
    """As a server on its stdio is: what starts it is what ``wrap`` returns."""
    there = await yard(kind, tmp_path)
    wrapped = there.sandbox.wrap(["/bin/cat"], there.rules)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *wrapped.argv, env=dict(wrapped.env), cwd=wrapped.cwd, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"ping\n")

    assert await process.stdout.readline() == b"ping\n"
    process.stdin.close()
    assert await process.wait() == 0


async def test_what_is_installed_and_does_not_work_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = await sandbox_here("auto")

    assert found.sandbox.name == "landlock"
    assert found.without == ("bubblewrap does not work here: bwrap: No permissions to create new namespace",)
    with pytest.raises(NoSandbox) as refused:
        await SandboxOfDaemon("bubblewrap").get()
    assert refused.value.hint == "apt-get install bubblewrap"


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_ours(pid: int) -> bool:
    return pid == os.getpid()
