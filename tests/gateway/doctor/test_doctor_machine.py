"""What doctor says of the machine: file systems, room, versions, open files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.doctor import machine
from gateway.doctor.checks import examine

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
        "libeatmydata.so answers syncs without one",
        "run the gateway without it: unset LD_PRELOAD",
    )


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs"])
def test_networks_are_known(kind: str) -> None:
    assert machine.NETWORKS.fullmatch(kind)
    assert not machine.NETWORKS.fullmatch("ext4")


def test_a_sync_is_timed_and_leaves_nothing(tmp_path: Path) -> None:
    assert machine.sync_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_memory_is_named(tmp_path: Path) -> None:
    """A workspace that a restart of the machine empties is told of."""
    memory = Path("/dev/shm")
    mount = machine.mount_of(memory, machine.mounts())
    if mount is None or mount.kind != "tmpfs":
        pytest.skip("no file system in memory here")
    found = {name: (level, text) for name, level, text, _ in machine.check(memory)}

    assert found["file system"] == ("warn", "tmpfs is memory: a restart of the machine loses all")
    assert {"inodes", "open files"} <= set(found)
    assert machine.mount_of(tmp_path, machine.mounts()) is not None


def test_the_locked_packages_are_within_range() -> None:
    """Named are what the gateway itself is made of, the extras only where they are installed."""
    level, text, _ = machine.versions()

    assert (level, text.startswith("chat-gateway ")) == ("ok", True)
    for name in ("Python 3.", "SQLite 3.", "aio-pika ", "litellm ", "discord.py ", "mcp "):
        assert name in text


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
