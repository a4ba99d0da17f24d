"""A confined command reads and writes what it may, and nothing else; tried for real."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from session.tools.sandbox import NoSandbox, Rules
from tests.session.tools.sandbox_place import SECRET, Yard, yard
from tests.support.guarantee import guarantee

pytestmark = [
    pytest.mark.ordinary_user,
    guarantee("security", "A sandboxed command reaches only its own folder and no network."),
]
# Each would show the secret, or change what is not the command's own. "$W" is the workspace.
ESCAPES = {
    "state": "cat $W/state/gateway.db",
    "sessions": "cat $W/sessions/*; ls -R $W/sessions",
    "another chat": "cat ../bob/diary.txt; cat $W/files/chats/bob/*",
    "everything above": "grep -rs sesame $W / --include=diary.txt --include=gateway.db --include=bob.jsonl",
    "a link": "ln -s $W/files/chats/bob/diary.txt in; cat in; ln $W/files/chats/bob/diary.txt hard; cat hard",
    "a link that was there": "cat out/diary.txt",
    "another root": "cat /proc/1/root$W/state/gateway.db /proc/self/root/../$W/state/gateway.db",
    "a mount": "mkdir m; mount --bind $W m && cat m/state/*; mount -t tmpfs none /mnt",
    "another namespace": "unshare -r -m sh -c 'cat $W/state/*.db; umount -l /; cat $W/state/*.db'",
    "a debugger": "for p in /proc/[0-9]*; do cat $p/environ $p/mem; done",
    "another user": "su -c 'cat $W/state/*.db'; sudo -n cat $W/state/*.db; chroot / cat $W/state/*",
}


@pytest.fixture
async def there(tmp_path: Path) -> Yard:
    return await yard(tmp_path)


@pytest.mark.parametrize("way", ESCAPES)
async def test_what_is_somebody_elses_is_not_read(there: Yard, way: str) -> None:
    (there.folder / "out").symlink_to(there.workspace / "files/chats/bob")

    outcome = await there.sh(ESCAPES[way].replace("$W", str(there.workspace)))

    assert SECRET not in outcome.out.text() + outcome.err.text()


async def test_whether_other_files_are_there_is_not_told(there: Yard) -> None:
    """Nor their size and times, which say who writes when."""
    others = {*there.workspace.rglob("*")} - {there.folder, *there.folder.parents}

    outcome = await there.python(
        f"import os\nfor path in {sorted(map(str, others))}:\n"
        "    try:\n        print(path, os.lstat(path))\n"
        "    except FileNotFoundError: print('nothing')"
    )

    assert outcome.out.text() == "nothing\n" * len(others)
    assert len(others) > 5


async def test_passwords_of_the_machine_are_not_read(there: Yard) -> None:
    outcome = await there.sh("head -c 1 /etc/shadow /etc/ssl/private/* /root/.* || echo refused")

    assert outcome.out.text() == "refused\n"


async def test_only_its_folder_is_written(there: Yard) -> None:
    outside = there.workspace / "files/chats/bob"
    (there.folder / "out").symlink_to(outside)
    (there.folder / "file").symlink_to(outside / "diary.txt")
    modes = {path: path.stat().st_mode for path in (outside, outside / "diary.txt")}

    outcome = await there.sh(
        "echo x > own.txt; mkdir deep && mv own.txt deep/; echo a > out/new; echo b > file;"
        f"echo c >> {outside}/diary.txt;"
        f"rm -rf {outside}; mv {outside} here; touch {outside}/t; truncate -s 0 {outside}/diary.txt;"
        f"chmod 777 {outside} {outside}/diary.txt; chown 1234 {outside}/diary.txt;"
        "touch /usr/x /etc/x /x /dev/x /var/x; exit 7"
    )

    assert outcome.exit_code == 7
    assert (there.folder / "deep/own.txt").read_text() == "x\n"
    assert [path.name for path in outside.iterdir()] == ["diary.txt"]
    assert (outside / "diary.txt").read_text() == SECRET
    assert {path: path.stat().st_mode for path in modes} == modes
    assert not [path for path in map(Path, ("/usr/x", "/etc/x", "/x", "/dev/x", "/var/x")) if path.exists()]


async def test_its_environment_is_clean(there: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_GATEWAY_MODEL__API_KEY", SECRET)

    outcome = await there.sh("env; cat /proc/*/environ", env={"MINE": "given"})

    assert SECRET not in outcome.out.text()
    assert "MINE=given" in outcome.out.text()
    assert f"HOME={there.folder}" in outcome.out.text()


async def test_it_has_a_place_for_temporary_files_that_nobody_else_sees(there: Yard) -> None:
    outcome = await there.sh('echo kept > "$TMPDIR/t" && cat "$TMPDIR/t" && echo "$TMPDIR"')

    said, where = outcome.out.text().split()
    assert said == "kept"
    assert not (Path(where) / "t").exists()


async def test_without_network_nothing_is_reached(there: Yard) -> None:
    """Neither by TCP nor UDP, neither the loopback nor a socket that has a name; nor the machine's host."""
    reached: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.3)
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0sandbox-test-{os.getpid()}")
        abstract.listen()
        named = socket.socket(socket.AF_UNIX)
        named.bind(str(there.workspace / "state/s"))
        named.listen()
        outcome = await there.python(f"""
import shutil
import socket
def tried(family, kind, where):
    try:
        one = socket.socket(family, kind)
        one.settimeout(2)
        one.sendto(b"x", where) if kind == socket.SOCK_DGRAM else one.connect(where)
        print("reached", where)
    except OSError as error:
        print("refused")
tried(socket.AF_INET, socket.SOCK_STREAM, {tcp.getsockname()})
tried(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53))
tried(socket.AF_UNIX, socket.SOCK_STREAM, {abstract.getsockname()!r})
tried(socket.AF_UNIX, socket.SOCK_STREAM, {named.getsockname()!r})
tried(socket.AF_VSOCK, socket.SOCK_STREAM, (2, 1024))
try:
    socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", {udp.getsockname()})
except OSError:
    pass
""")
        with suppress(TimeoutError):
            reached.append(udp.recv(10))
        abstract.close()
        named.close()

    assert outcome.out.text().split() == ["refused"] * 5, outcome.err.text()
    assert reached == []


async def test_with_the_network_it_reaches_servers_but_no_socket_of_other_programs(there: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        port = tcp.getsockname()[1]
        threading.Thread(target=lambda: tcp.accept()[0].sendall(b"hello"), daemon=True).start()
        outcome = await there.python(
            f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(9))\n"
            "socket.socket(socket.AF_UNIX)",
            network=True,
        )

    assert outcome.out.text() == "b'hello'\n"
    assert "PermissionError" in outcome.err.text()


async def test_it_signals_nobody_outside(there: Yard) -> None:
    us, above = os.getpid(), os.getppid()
    before = os.getpriority(os.PRIO_PROCESS, us)

    outcome = await there.sh(f"kill -9 {us}; kill -STOP {above}; renice 19 {us} || echo no")

    assert outcome.out.text() == "no\n"
    assert os.getpriority(os.PRIO_PROCESS, us) == before


async def test_it_has_no_privileges_and_gets_none(there: Yard) -> None:
    outcome = await there.python(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print(libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0))\n"
        "header = (ctypes.c_uint32 * 2)(0x20080522, 0); caps = (ctypes.c_uint32 * 6)()\n"
        "libc.capget(header, caps); print(list(caps))\n"
        "try:\n    os.mknod('disk', 0o60600, os.makedev(8, 0)); print('made')\n"
        "except OSError: print('refused')"
    )

    assert outcome.out.text().split("\n")[:3] == ["1 2", "[0, 0, 0, 0, 0, 0]", "refused"]


async def test_a_place_that_would_show_the_workspace_is_refused(there: Yard, tmp_path: Path) -> None:
    for readable, folder in (
        (there.workspace, there.folder),
        (there.workspace / "state", there.folder),
        (tmp_path, there.folder),
        (Path("/usr"), there.workspace),
        (tmp_path / "gone", there.folder),
    ):
        with pytest.raises(NoSandbox):
            there.sandbox.wrap(["true"], Rules(folder, readable=(readable,), private=(there.workspace,)))


async def test_what_is_readable_is_read_and_not_written(there: Yard, tmp_path: Path) -> None:
    program = tmp_path / "programs/server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho served; echo x >> $0")
    program.chmod(0o755)

    outcome = await there.sh(str(program), readable=(program.parent,))

    assert outcome.out.text() == "served\n"
    assert program.read_text().count("\n") == 1


async def test_what_is_open_for_reading_alone_is_not_changed(there: Yard, tmp_path: Path) -> None:
    """Neither its mode, its owner, its times nor its attributes; no path is named for it."""
    program = tmp_path / "programs/server"
    program.parent.mkdir()
    program.write_text("served")
    program.chmod(0o644)
    os.utime(program, (1, 1))
    before = program.stat()

    outcome = await there.python(
        f"""
import os
file = os.open({str(program)!r}, os.O_RDONLY)
for change in (
    lambda: os.fchmod(file, 0o4777),
    lambda: os.fchown(file, os.getuid(), os.getgid()),
    lambda: os.utime(file, (5, 5)),
    lambda: os.utime(file),
    lambda: os.setxattr(file, "user.x", b"x"),
    lambda: os.removexattr(file, "user.x"),
):
    try:
        change()
    except OSError:
        pass
print(os.read(file, 9))
""",
        readable=(program.parent,),
    )

    assert outcome.out.text() == "b'served'\n", outcome.err.text()
    after = program.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert (after.st_mtime, after.st_ctime_ns) == (1, before.st_ctime_ns)
    assert os.listxattr(program) == []


async def test_files_of_its_own_are_made_copied_and_changed(there: Yard) -> None:
    outcome = await there.sh(
        "touch new && echo a > one && sed -i s/a/b/ one && cp one two && mv two three && cat three"
    )

    assert (outcome.exit_code, outcome.out.text()) == (0, "b\n"), outcome.err.text()
    assert (there.folder / "new").read_text() == ""


async def test_of_the_shared_folder_the_parts_of_others_are_closed(there: Yard) -> None:
    shared = there.workspace / "files"
    (shared / "note").write_text("ours")

    outcome = await there.sh(
        "cat note; ls chats people; touch chats/x people/y || echo no",
        folder=shared,
        closed=("chats", "people"),
    )

    assert outcome.out.text() == "ourschats:\n\npeople:\nno\n"


# Lists what could change the machine for everybody on it, were it written to: nothing is written.
MACHINE = r"""
import os, stat, subprocess

def opens(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True

HARMLESS = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
tries = "mount -o remount,rw /proc; mount -o remount,rw /proc/sys; mount -t sysfs none /sys"
subprocess.run(tries, shell=True)
for top in ("/proc", "/sys", "/dev"):
    for parent, folders, names in os.walk(top):
        if parent == "/proc":
            # Processes of the command's own; the first belongs to the sandbox.
            folders[:] = [each for each in folders if each == "1" or not each.isdigit() and each != "self"]
        if parent.endswith("/fd"):
            # The command's own output.
            continue
        for name in names:
            path = f"{parent}/{name}"
            if not (top == "/dev" and (name in HARMLESS or not stat.S_ISBLK(os.lstat(path).st_mode) and
                    not stat.S_ISCHR(os.lstat(path).st_mode))) and opens(path):
                print("open:", path)
open("own", "w").close()
own = os.open("own", os.O_RDWR)
for change in (lambda: os.chmod("own", 0o4755), lambda: os.fchmod(own, 0o2755),
               lambda: os.chmod("own", 0o4755, dir_fd=os.open(".", os.O_RDONLY)),
               lambda: os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o644)) or os.chmod("made", 0o6644),
               lambda: os.mknod("disk", 0o60600, os.makedev(8, 0))):
    try:
        change()
        print("changed")
    except OSError:
        pass
print("end")
"""


# What reaches the kernel beside files and namespaces; each line that is printed was refused.
KERNEL = r"""
import ctypes, os, platform, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
open("own", "w").close()
for number, *arguments in (
    (425, 8, 0),  # io_uring_setup
    (452, -100, b"own", 0o4755, 0),  # fchmodat2
):
    print(libc.syscall(number, *arguments))
for family in (socket.AF_PACKET, socket.AF_VSOCK, socket.AF_ALG, 50, 2**31 - 1):
    try:
        socket.socket(family, socket.SOCK_RAW)
    except PermissionError:
        print(-1)

def of_another_machine(call):
    pid = os.fork()
    if pid == 0:
        call()
        os._exit(0)
    print(-1 if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSYS else "made")

def of_32_bits():
    import mmap
    # getpid: mov eax, 20; int 0x80; ret
    code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
    code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()

if platform.machine() == "x86_64":
    of_another_machine(of_32_bits)
    of_another_machine(lambda: libc.syscall(0x40000000 + 41, socket.AF_UNIX, 1, 0))
else:
    print(-1, -1, sep="\n")
"""


@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
async def test_calls_that_reach_past_files_and_namespaces_are_refused(there: Yard, network: bool) -> None:
    """Also by the numbers of another machine, where a filter may not look."""
    outcome = await there.python(KERNEL, network=network)

    assert outcome.out.text() == "-1\n" * 9, outcome.err.text()
    assert (there.folder / "own").stat().st_mode & 0o6000 == 0


async def test_a_child_that_ended_holds_no_sockets(there: Yard) -> None:
    """Until its parent waits for it, only root may list its files."""
    outcome = await there.python(
        "import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(0.5)\nprint('end')", network=True
    )

    assert outcome.out.text() == "end\n", outcome.err.text()


async def test_the_machine_is_not_changed(there: Yard) -> None:
    outcome = await there.python(MACHINE)

    assert outcome.out.text() == "end\n", outcome.err.text()
    assert [path.stat().st_mode & 0o6000 for path in there.folder.iterdir()] == [0, 0]
