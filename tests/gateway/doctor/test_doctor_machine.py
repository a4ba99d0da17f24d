"""What doctor says of the machine: file systems, room, versions, open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.doctor import machine

MOUNTS = [("/", "ext4"), ("/srv", "nfs4"), ("/srv/local disk", "xfs"), ("/mnt", "tmpfs"), ("/mnt", "cifs")]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home", "ext4"),
        ("/srv/chat", "nfs4"),
        ("/srv/local disk/chat", "xfs"),
        ("/srvx", "ext4"),
        ("/mnt/chat", "cifs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    """Of two at one point the later one covers the other."""
    assert machine.kind_of(Path(path), MOUNTS) == kind


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
    if machine.kind_of(memory, machine.mounts()) != "tmpfs":
        pytest.skip("no file system in memory here")
    found = {name: (level, text) for name, level, text, _ in machine.check(memory)}

    assert found["file system"] == ("warn", "tmpfs is memory: a restart of the machine loses all")
    assert {"inodes", "open files"} <= set(found)
    assert machine.kind_of(tmp_path, machine.mounts()) != ""


def test_the_locked_packages_are_within_range() -> None:
    level, text, _ = machine.versions()

    assert (level, text.startswith("Python 3.")) == ("ok", True)
