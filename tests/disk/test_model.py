"""The model of a disk that forgets, against the rules of POSIX."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tests.disk.model import Disk, Fate, Node, Write

FILE, FOLDER = stat.S_IFREG | 0o600, stat.S_IFDIR | 0o700
NOTHING = Fate(random.Random(0), names=0, data=0)
ALL = Fate(random.Random(0), names=1, data=1)
SEEDS = st.integers(0, 10**6)
Step = Callable[[Disk], object]


def chance(seed: int, *, torn: bool = True) -> Fate:
    return Fate(random.Random(seed), torn=torn)


def tree(disk: Disk) -> dict[str, bytes | None]:
    """Every path with its bytes; None: a folder."""
    found: dict[str, bytes | None] = {}

    def walk(node: Node, path: str) -> None:
        for name, number in node.entries.items():
            child = disk.nodes[number]
            found[f"{path}/{name}"] = None if child.is_folder else bytes(child.content)
            if child.is_folder:
                walk(child, f"{path}/{name}")

    walk(disk.find("/"), "")
    return found


def filled(disk: Disk, path: str, data: bytes, *, synced: bool = False) -> Node:
    node = disk.make(path, FILE)
    disk.write(node, Write(0, data))
    if synced:
        disk.sync(node)
    return node


def test_bytes_without_their_name_are_lost_and_so_is_the_name_without_its_bytes() -> None:
    disk = Disk()
    filled(disk, "/a", b"content", synced=True)

    assert tree(disk.cut(NOTHING)) == {}

    disk = Disk()
    filled(disk, "/a", b"content")
    disk.sync(disk.find("/"))
    assert tree(disk.cut(NOTHING)) == {"/a": b""}


@given(SEEDS)
def test_a_rename_leaves_the_old_file_or_the_new_one(seed: int) -> None:
    disk = Disk()
    filled(disk, "/a", b"old", synced=True)
    disk.sync(disk.find("/"))
    filled(disk, "/temp", b"new", synced=True)
    disk.rename("/temp", "/a")

    left = tree(disk.cut(chance(seed)))
    assert left["/a"] in (b"old", b"new")
    disk.sync(disk.find("/"))
    assert tree(disk.cut(chance(seed))) == {"/a": b"new"}


@given(SEEDS, st.booleans(), st.booleans())
def test_a_rename_into_another_folder_never_loses_both_names(seed: int, here: bool, there: bool) -> None:
    disk = Disk()
    for name in ("/f", "/g"):
        disk.make(name, FOLDER)
    filled(disk, "/f/a", b"x", synced=True)
    for name in ("/", "/f"):
        disk.sync(disk.find(name))
    disk.rename("/f/a", "/g/a")
    disk.sync(disk.find("/f")) if here else None
    disk.sync(disk.find("/g")) if there else None

    files = {path for path, data in tree(disk.cut(chance(seed))).items() if data is not None}
    assert files and files <= {"/f/a", "/g/a"}
    if here or there:
        assert "/g/a" in files
    if here:
        assert "/f/a" not in files


@given(SEEDS, st.sampled_from([512, 4096]))
def test_of_a_write_that_was_not_synced_each_sector_is_the_old_or_the_new_one(seed: int, sector: int) -> None:
    disk = Disk()
    node = filled(disk, "/a", b"o" * 3 * sector, synced=True)
    disk.sync(disk.find("/"))
    disk.write(node, Write(0, b"n" * 5 * sector))

    left = tree(disk.cut(chance(seed)))["/a"]
    assert left is not None
    assert len(left) in (3 * sector, 5 * sector)
    for at in range(0, len(left), 512):
        assert set(left[at : at + 512]) in ({ord("o")}, {ord("n")}, {0} if at >= 3 * sector else {ord("n")})


@given(SEEDS)
def test_what_was_appended_in_one_sector_is_kept_from_the_first_on(seed: int) -> None:
    """A sector is written as it stands in memory: it never holds the second append without the first."""
    disk = Disk()
    node = filled(disk, "/a", b"one,", synced=True)
    disk.sync(disk.find("/"))
    disk.write(node, Write(4, b"two,"))
    disk.write(node, Write(8, b"three,"))

    left = tree(disk.cut(chance(seed)))["/a"]
    assert left is not None
    assert left.rstrip(b"\0") in tuple(b"one,two,three,"[:size] for size in (4, 8, 14))


def test_after_a_failed_sync_no_later_one_keeps_what_was_written() -> None:
    disk = Disk()
    node = filled(disk, "/a", b"one", synced=True)
    disk.sync(disk.find("/"))
    disk.write(node, Write(3, b"two"))
    disk.fail_sync(node)
    disk.write(node, Write(6, b"three"))
    disk.sync(node)

    assert tree(disk) == {"/a": b"onetwothree"}
    assert tree(disk.cut(ALL)) == {"/a": b"one\0\0\0three"}


NAMES = st.sampled_from(["/a", "/b", "/f/a", "/f/b"])
STEPS: st.SearchStrategy[tuple[str, ...]] = st.one_of(
    st.tuples(st.sampled_from(["write", "sync", "unlink", "cut"]), NAMES),
    st.tuples(st.sampled_from(["rename", "link"]), NAMES, NAMES),
    st.tuples(st.just("folder"), st.sampled_from(["/", "/f"])),
)


def do(disk: Disk, step: tuple[str, ...], count: int) -> None:
    """Do one step, where it can be done."""
    kind, path, *rest = step
    try:
        if kind == "write":
            node = disk.find(path) if path in tree(disk) else disk.make(path, FILE)
            disk.write(node, Write(len(node.content), b"%d," % count))
        elif kind == "cut":
            disk.write(disk.find(path), Write(cut=1))
        elif kind in ("sync", "folder"):
            disk.sync(disk.find(path))
        elif kind == "unlink":
            disk.unlink(path)
        elif kind == "rename":
            disk.rename(path, *rest)
        else:
            disk.link(path, *rest)
    except OSError:
        return


@given(st.lists(STEPS, max_size=40), SEEDS)
def test_what_a_cut_leaves_is_made_of_what_was(steps: list[tuple[str, ...]], seed: int) -> None:
    disk = Disk()
    disk.make("/f", FOLDER)
    disk.sync(disk.find("/"))
    # By number, since the last sync: each length and content of a file; by folder, each file of a name.
    contents: dict[int, set[bytes]] = {}
    names: dict[tuple[int, str], set[int | None]] = {}
    for count, step in enumerate([("folder", "/"), *steps]):
        do(disk, step, count)
        for node in disk.nodes.values():
            was = contents.setdefault(node.number, {b""})
            was.add(bytes(node.content))
            if not node.writes:
                contents[node.number] = {bytes(node.content)}
            for name in "abf":
                held = names.setdefault((node.number, name), {None})
                held.add(node.entries.get(name))
                if node.is_folder and not node.changes:
                    names[node.number, name] = {node.entries.get(name)}

    torn = disk.cut(chance(seed))
    whole = disk.cut(chance(seed, torn=False))
    for left in (torn, whole):
        assert tree(left.cut(chance(seed + 1))) == tree(left)
        for node in left.nodes.values():
            for name in "abf":
                assert node.entries.get(name) in names.get((node.number, name), {None})
    for node in whole.nodes.values():
        assert node.is_folder or bytes(node.content) in contents[node.number]
    for node in torn.nodes.values():
        assert node.is_folder or len(node.content) in map(len, contents[node.number])
    assert tree(disk.cut(ALL)) == tree(disk)
    for node in list(disk.nodes.values()):
        disk.sync(node)
    assert tree(disk.cut(chance(seed))) == tree(disk) == tree(disk.cut(NOTHING))
