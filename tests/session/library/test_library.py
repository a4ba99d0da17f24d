"""Playbooks and skills: read as people write them, searched without ever hanging, left out when broken."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from session.disk.layout import FileCache
from session.library.library import (
    ASIDE_S,
    Bad,
    Broken,
    Library,
    PatternResult,
    read_playbook,
    search,
    split_head,
)
from tests.support.guarantee import guarantee

FOREVER = "(a|aa)+$"
HANGS_IT = "a" * 5000 + "!"


def book(workspace: Path, name: str, *patterns: str, body: str = "Do it well.") -> Path:
    rows = "".join(f"  - '{pattern}'\n" for pattern in patterns)
    text = f"---\nname: {name}\ndescription: d\npatterns:\n{rows}---\n{body}\n"
    return write(workspace / "playbooks" / f"{name}.md", text)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def names(library: Library, message: str) -> list[str]:
    return [one.name for one in library.matched(message)]


@pytest.mark.parametrize(
    ("head", "value"),
    [
        ("patterns: ship", "ship"),
        ("patterns: ship it # now", "ship it"),
        ("patterns: 'it''s \\b'", "it's \\b"),
        ('patterns: "a\\\\b" # c', "a\\b"),
        ("patterns: [a, 'b, c', \"d\"]", ["a", "b, c", "d"]),
        ("patterns:\n  - a\n  # no\n  - 'b'\n\n  - c d\n    e", ["a", "b", "c d e"]),
        ("patterns:\n- a\n- b", ["a", "b"]),
        ("patterns: >-\n  a\n  b\n", "a b"),
        ("patterns: |-\n  a\n    b", "a\n  b"),
        ("patterns: a\n  b", "a b"),
        ("other:\n  deep: {x: [1]}\nmore: 2026-01-01\npatterns: 12", "12"),
        ("patterns: []", []),
        ("patterns: [ a b , 'it''s' ,\"\\\"\", c ] # d", ["a b", "it's", '"', "c"]),
    ],
)
def test_what_people_write_at_the_head_is_read(head: str, value: object) -> None:
    """Plain, quoted and folded texts, lists both ways; what is not asked for may be anything."""
    values, body = split_head(f"\ufeff---\r\n{head}\r\n---\r\n\r\nBody\r\n".replace("\r\n\r\n---", "\r\n---"))

    assert values["patterns"] == value
    assert body == "Body"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name: x",
        "---\nname: x\n",
        "---\nnonsense\n---\n",
        "---\n  - a\n---\n",
        "---\nname: 'open\n---\n",
        "---\nname: 'a' b\n---\n",
        "---\nname: a\n---\nbody",
        '---\nname: a\npatterns: "\\bword"\n---\nbody',
        "---\nname: [a, b\n---\n",
        "---\nname: [a] b\n---\n",
        "---\nname: {a: b}\n---\n",
        "---\nname:\n  - a\n  b: c\n - d\nx\n---\n",
    ],
)
def test_a_broken_head_says_so(text: str) -> None:
    """Whatever is wrong with it is one error with words."""
    found = read_playbook(Path("a.md"), text.encode())

    assert isinstance(found, Bad)
    assert found.problem


@pytest.mark.parametrize("value", ["a{}b", "[a,{}", "[a{}b]", "'a'{}", '"a{}', "a #{}"])
def test_a_head_takes_no_longer_than_it_is_long(value: str) -> None:
    """Whether it can be read or not."""
    began = time.process_time()
    with suppress(Broken):
        split_head(f"---\nname: {value.format(' ' * 60_000)}\n---\n")

    assert time.process_time() - began < 1


def test_playbooks_match_by_search_without_case(tmp_path: Path) -> None:
    """A pattern is searched anywhere in the message; capitals do not matter; file names give the order."""
    book(tmp_path, "b-ship", r"\bship\b", "deploy")
    book(tmp_path, "a-all", "it")
    library = Library(tmp_path)

    assert names(library, "please SHIP it") == ["a-all", "b-ship"]
    assert names(library, "shipping") == []
    assert names(library, "") == []


@guarantee("failures", "A regular expression that never ends holds up neither its turn nor the gateway.")
def test_a_pattern_that_runs_for_ever_costs_half_a_second_once(tmp_path: Path) -> None:
    """It is given up and set aside; the other playbooks match all the same."""
    clock = [0.0]
    book(tmp_path, "a", FOREVER)
    book(tmp_path, "b", "a!")
    library = Library(tmp_path, clock=lambda: clock[0])

    with capture_logs() as logs:
        for _ in range(4):
            assert names(library, HANGS_IT) == ["b"]

    assert [line["file"] for line in logs if line["event"] == "playbook.slow"] == ["a.md"]
    clock[0] += ASIDE_S + 1
    assert names(library, "aaa") == ["a"]


def test_what_is_broken_is_skipped_and_named(tmp_path: Path) -> None:
    """A playbook or skill with a broken head or pattern is left out, and the others stay."""
    book(tmp_path, "good", "x")
    book(tmp_path, "bad-pattern", "x(")
    write(tmp_path / "playbooks" / "headless.md", "just text")
    write(tmp_path / "playbooks" / "notes.txt", "no playbook")
    os.mkfifo(tmp_path / "playbooks" / "pipe.md")
    (tmp_path / "playbooks" / "folder.md").mkdir()
    write(tmp_path / "skills" / "a" / "SKILL.md", "---\nname: a\ndescription: does a\n---\nHow.")
    write(tmp_path / "skills" / "b" / "SKILL.md", "---\nname: a\ndescription: again\n---\nHow.")
    write(tmp_path / "skills" / "c" / "SKILL.md", "---\nname: c\n---\nHow.")
    (tmp_path / "skills" / "d").mkdir()
    library = Library(tmp_path)

    assert names(library, "x") == ["good"]
    assert [(one.name, one.description) for one in library.skills()] == [("a", "does a")]
    assert sorted(str(bad.path.relative_to(tmp_path)) for bad in library.problems()) == [
        "playbooks/bad-pattern.md",
        "playbooks/folder.md",
        "playbooks/headless.md",
        "playbooks/pipe.md",
        "skills/b/SKILL.md",
        "skills/c/SKILL.md",
        "skills/d/SKILL.md",
    ]


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    """An edit is seen by the next message; a file that stays is not read again."""
    reads: list[bytes] = []
    shelf: FileCache[bytes] = FileCache(lambda path, data: reads.append(data) or data)
    path = write(tmp_path / "USER.md", "old")

    assert [shelf.get(path), shelf.get(path)] == [b"old", b"old"]
    assert len(reads) == 1
    path.write_text("new")
    assert shelf.get(path) == b"new"
    # The file is so young that its time may be the same.
    path.write_text("net")
    assert shelf.get(path) == b"net"
    path.unlink()
    assert shelf.get(path) is None
    # What a container makes of a file to be mounted that is not there.
    path.mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [shelf.get(path) for _ in range(20)] == [None] * 20
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 10


def test_a_pattern_has_a_time_limit_and_other_threads_go_on_meanwhile() -> None:
    with ThreadPoolExecutor() as beside:
        searching = beside.submit(search, FOREVER, HANGS_IT, limit_s=0.5)
        turns = 0
        while not searching.done():
            turns += 1

    assert searching.result() == PatternResult(problem="it ran for over 0.5 s", slow=True)
    assert turns > 1000


@pytest.mark.parametrize(
    "pattern",
    ["(", "a{1,99999999999999999999}", "x{" + "9" * 1500 + "}", "(" * 1000 + ")" * 1000, "a" * 2001],
)
def test_a_pattern_that_cannot_be_searched_is_a_problem(pattern: str) -> None:
    assert search(pattern, "aaa", limit_s=5).problem


def test_lines_are_counted_from_one_up_to_the_limit() -> None:
    assert search("l", "hello\nworld\nx\nall", limit_s=5, most_lines=2) == PatternResult(True, [1, 2])
    assert search("L", "hello", limit_s=5, ignore_case=False) == PatternResult(False)
