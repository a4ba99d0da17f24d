"""What doctor says of the machine: file systems, room, versions, open files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.doctor import machine
from gateway.doctor.checks import examine
from tests.disk.mount import why_not
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

MOUNTINFO = (
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro",
    "40 22 0:44 / /srv rw - nfs4 host:/srv rw,vers=4.2",
    r"41 40 8:2 / /srv/local\040disk rw,nobarrier - xfs /dev/sdb rw,attr2",
    "42 22 0:45 / /mnt rw - tmpfs tmpfs rw",
    "43 22 0:46 / /mnt rw - cifs //host/mnt rw",
    "44 22 0:47 / /layer rw master:3 - overlay overlay rw,lowerdir=/a,volatile",
    "45 22 8:3 / /old rw - ext3 /dev/sdc rw,barrier=0",
)
MOUNTS = [machine.read_mount(line) for line in MOUNTINFO]


@pytest.mark.parametrize(
    ("path", "kind", "option"),
    [
        ("/home", "ext4", None),
        ("/srv/chat", "nfs4", None),
        ("/srv/local disk/chat", "xfs", "nobarrier"),
        ("/srvx", "ext4", None),
        ("/mnt/chat", "cifs", None),
        ("/layer/chat", "overlay", "volatile"),
        ("/old", "ext3", "barrier=0"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, kind: str, option: str | None) -> None:
    """Of two at one point the later one covers the other; options that leave syncs out are named."""
    mount = machine.mount_of(Path(path), MOUNTS)
    lie = machine.lie_of(mount, "/usr/lib/libc.so.6")

    assert mount is not None
    assert mount.kind == kind
    assert (lie is not None) == (option is not None)
    if lie is not None:
        assert option in lie[0]
        assert lie[1] == f"mount {mount.point} without {option}"


def test_a_library_that_answers_syncs_itself_is_seen() -> None:
    lie = machine.lie_of(None, "7f00 r-xp /usr/lib/x86_64-linux-gnu/libeatmydata.so.1.3.0\n")

    assert lie == (
        "libeatmydata.so skips syncs",
        "run the gateway without it: unset LD_PRELOAD",
    )


# Lines of ``mountinfo`` as machines have them, the number that statfs(2) gives there, and whose disk it is.
REAL = (
    ("36 25 0:31 / /p rw - nfs4 10.0.0.5:/export/chat rw,vers=4.2,hard", 0x6969, "nfs4 (0x6969)"),
    ("36 25 0:31 / /p rw - nfs filer:/vol/chat rw,vers=3,nolock", 0x6969, "nfs (0x6969)"),
    ("70 1 0:51 / /p rw - cifs //nas/chat rw,vers=3.1.1,cache=strict", 0xFF534D42, "cifs (0xFF534D42)"),
    ("70 1 0:51 / /p rw - smb3 //nas/chat rw,vers=3.1.1", 0xFE534D42, "smb3 (0xFE534D42)"),
    ("90 1 0:60 / /p rw - fuse.sshfs ada@host:/srv rw,user_id=0", 0x65735546, "fuse.sshfs (0x65735546)"),
    ("90 1 0:60 / /p rw - fuse.glusterfs gfs1:/vol rw", 0x65735546, "fuse.glusterfs (0x65735546)"),
    ("90 1 0:60 / /p rw - fuse.rclone remote: rw", 0x65735546, "fuse.rclone (0x65735546)"),
    ("91 1 0:61 / /p rw - 9p hostshare rw,trans=virtio", 0x01021997, "9p (0x1021997)"),
    ("92 1 0:62 / /p rw - ceph 10.0.0.1:6789:/ rw,name=admin", 0x00C36400, "ceph (0xC36400)"),
    ("93 1 0:63 / /p rw - lustre 10.0.0.1@tcp:/lus rw,flock", 0x0BD00BD0, "lustre (0xBD00BD0)"),
    ("94 1 0:64 / /p rw - afs AFS rw", 0x5346414F, "afs (0x5346414F)"),
    ("95 1 0:65 / /p rw - gpfs gpfs0 rw", 0x47504653, "gpfs (0x47504653)"),
    # Of a kind that nobody knows the number tells; without a number the kind does.
    ("96 1 0:66 / /p rw - efs fs-1:/ rw", 0x6969, "efs (0x6969)"),
    ("36 25 0:31 / /p rw - nfs4 host:/srv rw", 0, "nfs4"),
    ("22 1 8:1 / /p rw - ext4 /dev/sda1 rw", 0xEF53, ""),
    ("23 1 8:2 / /p rw - xfs /dev/sdb rw", 0x58465342, ""),
    ("24 1 0:30 / /p rw - btrfs /dev/sdc rw", 0x9123683E, ""),
    ("25 1 0:32 / /p rw - zfs tank/chat rw", 0x2FC12FC1, ""),
    ("26 1 0:33 / /p rw - overlay overlay rw,lowerdir=/a", 0x794C7630, ""),
    ("27 1 8:4 / /p rw - fuseblk /dev/sdd1 rw", 0x65735546, ""),
    ("28 1 0:34 / /p rw - tmpfs tmpfs rw", 0x01021994, ""),
)


@pytest.mark.parametrize(("line", "magic", "network"), REAL)
def test_networks_are_named_by_their_number(line: str, magic: int, network: str) -> None:
    seen = machine.Seen(machine.read_mount(line), magic)

    assert seen.network == network


def test_a_workspace_on_a_network_is_at_risk(tmp_path: Path) -> None:
    """The finding says what is at risk, and the cure takes it away."""
    seen = machine.Seen(machine.read_mount(REAL[0][0]), 0x6969)

    found = machine.file_system(tmp_path, seen)
    assert found.level == "fail"
    assert all(word in found.text for word in ("nfs4 (0x6969)", "gateway.db", "channels.db"))
    assert found.cure == "move the workspace to a disk of this machine"

    found = machine.local_files(tmp_path / "d", seen)
    assert (found.level, found.cure) == ("fail", "choose a folder on a disk of this machine")
    assert machine.local_files(tmp_path / "d" / "e").level == "ok"


def test_a_program_that_makes_a_file_system_may_hide_a_network(tmp_path: Path) -> None:
    seen = machine.Seen(machine.read_mount("90 1 0:60 / /p rw - fuse.own own rw"), 0x65735546)

    found = machine.file_system(tmp_path, seen)

    assert found.level == "warn"
    assert "provided by a program" in found.text
    assert "move the workspace" in found.cure


# Mounts a folder as sshfs does, and asks doctor for it, in a view of the files that ends with the process.
ON_SSHFS = """
import json, os, sys, threading
from pathlib import Path
from gateway.doctor import machine
from tests.disk import forgetful, fuse_wire
folder = Path(sys.argv[1])
served = fuse_wire.mount(folder, "ada@host:/srv", "fuse.sshfs"), forgetful.empty()
threading.Thread(target=fuse_wire.serve, args=served, daemon=True).start()
seen = machine.look_at(folder)
print(json.dumps([seen.network, machine.file_system(folder, seen).as_dict()]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_real_mount_is_seen_by_its_number(tmp_path: Path) -> None:
    words = ["unshare", "--mount", sys.executable, "-c", ON_SSHFS, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    network, found = json.loads(done.stdout)
    level, text = found["level"], found["text"]
    assert network == "fuse.sshfs (0x65735546)"
    assert level == "fail"
    assert text.startswith(
        "fuse.sshfs (0x65735546) is a network file system, which SQLite cannot rely on; at risk: "
    )


def test_a_sync_is_timed_and_leaves_nothing(tmp_path: Path) -> None:
    assert machine.sync_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_memory_is_named(tmp_path: Path) -> None:
    """A workspace that a restart of the machine empties is told of."""
    memory = Path("/dev/shm")
    mount = machine.mount_of(memory, machine.mounts())
    if mount is None or mount.kind != "tmpfs":
        pytest.skip("no file system in memory here")
    found = {each.name: (each.level, each.text) for each in machine.check(memory)}

    assert found["file system"] == ("warn", "tmpfs is in memory: a restart of the machine loses everything")
    assert {"inodes", "open files"} <= set(found)
    assert machine.mount_of(tmp_path, machine.mounts()) is not None


def test_the_locked_packages_are_within_range() -> None:
    """Named are what the gateway itself is made of, the extras only where they are installed."""
    level, text = (found := machine.versions()).level, found.text

    assert (level, text.startswith("chat-gateway ")) == ("ok", True)
    for name in ("Python 3.", "SQLite 3.", "aiormq ", "litellm ", "discord.py ", "mcp "):
        assert name in text


@guarantee(
    "operation",
    "`doctor` finishes and reports its other findings when a disk, queue, MCP server or sandbox hangs.",
)
async def test_a_folder_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    """A look that hangs is its own finding; all others are there, and those of the whole folder as well."""
    os.mkfifo(_folder(tmp_path / "state") / "retention.json")
    settings = Settings.model_validate({"workspace": tmp_path})

    found = {check.name: check async for check in examine(settings, local_s=2.0)}
    release(tmp_path / "state" / "retention.json")

    assert found["clock"].level == "fail"
    assert found["clock"].text == f"no answer from {tmp_path} within 2 s"
    assert "network" in found["clock"].cure
    assert {"workspace", "locks", "transcripts", "cron", "erasures", "channels"} <= set(found)


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def release(fifo: Path) -> None:
    """Let go of whoever waits to read it."""
    os.close(os.open(fifo, os.O_WRONLY))
