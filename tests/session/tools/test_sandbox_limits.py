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

from session.tools.sandbox import FORBIDDEN_CURE, NoSandbox, SandboxOfDaemon
from tests.session.tools.sandbox_place import Yard, processes_with, yard
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

FULL = """
import ctypes, mmap, os, socket, time
def full(one):
    one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
"""
PAIRS = """
for _ in range(15):
    if os.fork() == 0: break
pairs = [socket.socketpair() for _ in range(460)]
for one, _ in pairs: full(one)
"""
# Ways to hold memory: of several processes, or what the kernel keeps for them.
HOARDS = {
    "several processes": """
for _ in range(4):
    if os.fork() == 0: break
x = bytearray(b'x') * (100 * 2**20)
""",
    "sockets": PAIRS,
    "sockets of processes that hide them": "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)" + PAIRS,
    "sockets that nobody accepts": """
waiting = socket.socket(socket.AF_UNIX)
waiting.bind('\\0waiting'); waiting.listen(4096)
for _ in range(4000):
    one = socket.socket(socket.AF_UNIX)
    one.connect('\\0waiting'); full(one); one.close()
""",
    "page tables": """
x = mmap.mmap(-1, 2**40, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)
for n in range(0, 2**40, 2**21): x[n]
""",
}


@pytest.fixture
async def there(tmp_path: Path) -> Yard:
    return await yard(tmp_path)


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


async def test_killing_whoever_started_it_ends_everything(tmp_path: Path, tag: str) -> None:
    """No handler runs then: the kernel tells the launcher."""
    code = (
        "import asyncio, pathlib, sys\n"
        "from tests.session.tools.sandbox_place import yard\n"
        "async def main():\n"
        f"    there = await yard(pathlib.Path({str(tmp_path)!r}))\n"
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
    outcome = await there.sh(f"bomb() {{ bomb | bomb & }}; bomb; sleep {tag}", timeout_s=5)

    assert "Resource temporarily unavailable" in outcome.err.text() or "64 processes" in outcome.err.text()
    assert list(processes_with(tag)) == []
    assert subprocess.run(["/bin/true"], check=True).returncode == 0


async def test_memory_of_one_process_is_bounded(there: Yard) -> None:
    outcome = await there.python("x = bytearray(300 * 2**20)")

    assert "MemoryError" in outcome.err.text()


@pytest.mark.parametrize(
    ("way", "network"),
    # On the machine's network no Unix socket can be named.
    [
        (way, network)
        for way in HOARDS
        for network in (False, True)
        if not network or "AF_" not in HOARDS[way]
    ],
)
async def test_memory_of_all_processes_and_of_the_kernel_for_them_is_bounded(
    there: Yard, way: str, network: bool
) -> None:
    """Each of these would hold gigabytes, most of them as memory of no process."""
    outcome = await there.python(FULL + HOARDS[way] + "time.sleep(60)", network=network)

    assert outcome.err.text().endswith("[sandbox] ended: over 256 MB of memory\n")
    assert outcome.exit_code == 137


async def test_shared_memory_that_no_process_has_is_refused(there: Yard) -> None:
    """Once unmapped in part, or given up by ``madvise``, its pages are counted nowhere and stay."""
    outcome = await there.python(
        "import ctypes, mmap, os\n"
        "libc = ctypes.CDLL(None)\n"
        "zero = os.open('/dev/zero', os.O_RDWR)\n"
        "for file in (-1, zero):\n"
        "    try:\n        mmap.mmap(file, 2**20)\n"
        "    except OSError as error: print(error.strerror)\n"
        "print(len(os.read(zero, 9)), len(mmap.mmap(-1, 9, flags=mmap.MAP_PRIVATE)))\n"
        "print(libc.shmget(0, 2**20, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 9, 0o1600))\n"
        "print(libc.memfd_create(b'x', 0), libc.syscall(447, 0))"
    )

    assert outcome.out.text() == ("Operation not permitted\nNo such device\n9 9\n-1 -1 -1\n-1 -1\n"), (
        outcome.err.text()
    )


async def test_files_in_memory_are_bounded(there: Yard) -> None:
    outcome = await there.sh(
        "for d in /tmp /dev/shm; do head -c 100M /dev/zero > $d/x; stat -c %s $d/x; done"
    )

    assert outcome.out.text() == f"{64 * 2**20}\n" * 2


async def test_the_kernel_ends_the_command_first_where_memory_runs_short(there: Yard) -> None:
    outcome = await there.sh("echo 0 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")

    assert outcome.out.text() == "1000\n"


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
    outcome = await there.sh("wc -m <<<" + "я" * 65_531)
    odd = await there.sh("echo " + os.fsdecode(b"\xff\xc3") + "'\U0001f600'")

    assert (outcome.exit_code, outcome.out.text()) == (0, "65532\n")
    assert (odd.exit_code, odd.out.text()) == (0, b"\xff\xc3\xf0\x9f\x98\x80\n".decode("utf-8", "replace"))


async def test_one_that_is_too_long_for_the_system_is_told(there: Yard) -> None:
    with pytest.raises(NoSandbox, match="the command is over 128 kB") as caught:
        await there.sh("echo " + "я" * 65_534)

    assert caught.value.hint == "write it to a file and run that"


async def test_a_command_that_is_not_there_is_told(there: Yard) -> None:
    wrapped = there.sandbox.wrap(["no-such-program"], there.rules)
    process = await asyncio.create_subprocess_exec(
        *wrapped.argv, env=dict(wrapped.env), cwd=wrapped.cwd, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()

    assert process.returncode in (125, 127)
    assert b"no-such-program" in said


async def test_one_that_is_talked_with_ends_when_its_input_does(there: Yard) -> None:
    """As a server on its stdio is: what starts it is what ``wrap`` returns."""
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


@pytest.mark.parametrize(
    ("bwrap", "problem", "cure"),
    [
        ("", "bubblewrap is not installed", "apt-get install bubblewrap"),
        (
            "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n",
            "bubblewrap does not work here: bwrap: No permissions to create new namespace",
            FORBIDDEN_CURE,
        ),
    ],
)
async def test_without_one_that_works_the_owner_is_told_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bwrap: str, problem: str, cure: str
) -> None:
    if bwrap:
        (tmp_path / "bwrap").write_text(bwrap)
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NoSandbox) as refused:
        await SandboxOfDaemon().get()

    assert (str(refused.value), refused.value.hint) == (problem, cure)


def test_without_libseccomp_no_command_is_confined(tmp_path: Path) -> None:
    """The library is looked for by ``ctypes.util``, which asks the loader's own list."""
    code = (
        "import asyncio, ctypes.util\n"
        "ctypes.util.find_library = {'c': None}.get\n"
        "from session.tools.sandbox import NoSandbox\n"
        "from session.tools.sandbox import sandbox_here\n"
        "try:\n    asyncio.run(sandbox_here())\n"
        "except NoSandbox as error:\n    print(error, error.hint, sep='\\n')\n"
    )

    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert said.stdout.splitlines() == [
        "libseccomp cannot be used: Unable to find libseccomp",
        "apt-get install libseccomp2",
    ]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_ours(pid: int) -> bool:
    return pid == os.getpid()
