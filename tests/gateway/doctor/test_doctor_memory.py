"""What ``doctor`` and the daemon say of notes that nobody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import memory_scope
from gateway.config.load import load
from tests.support.place import write


def level(workspace: Path, scope: str) -> str:
    return memory_scope.check(load(workspace=workspace, environ={"CHAT_GATEWAY_MEMORY__SCOPE": scope}))[0]


@pytest.mark.parametrize("name", ["MEMORY.md", "USER.md"])
def test_notes_of_the_workspace_warn_where_each_chat_has_its_own(tmp_path: Path, name: str) -> None:
    """They are named while the scope is chat, and only then."""
    assert level(tmp_path, "chat") == "ok"
    notes = tmp_path / "memory" / name
    notes.parent.mkdir()
    notes.write_text("Ada likes tea")

    assert (level(tmp_path, "chat"), level(tmp_path, "workspace")) == ("warn", "ok")


PEOPLE = 'ada = ["telegram:1", "cli:direct"]'


def said(workspace: Path, people: str, scope: str = "chat") -> tuple[str, str, str]:
    write(workspace / "c.toml", f'[memory]\nscope = "{scope}"\n[people]\n{people}\n')
    return memory_scope.check(load(workspace / "c.toml", workspace=workspace, environ={}))


@pytest.mark.parametrize(
    ("key", "chat", "found"),
    [
        ("telegram:1", '"direct"', "warn"),
        ("telegram:1", '"group"', "ok"),
        ("telegram:1", "null", "ok"),
        ("cli:direct", "null", "warn"),
    ],
)
def test_notes_that_a_chat_had_before_it_was_a_persons_are_named(
    tmp_path: Path, key: str, chat: str, found: str
) -> None:
    """Those of a group are in use; so are those of a chat that counts as one."""
    stem = key.replace(":", "_")
    write(tmp_path / "memory" / "chats" / stem / "MEMORY.md", "Ada likes tea")
    write(tmp_path / "sessions" / f"{stem}.jsonl", f'{{"_type":"metadata","metadata":{{"chat":{chat}}}}}\n')

    level, text, cure = said(tmp_path, PEOPLE)

    assert level == found
    if found == "warn":
        assert f"memory/chats/{stem}" in text
        assert "memory/people/ada" in cure


def test_notes_of_somebody_who_is_listed_no_more_are_named(tmp_path: Path) -> None:
    write(tmp_path / "memory" / "people" / "ada" / "MEMORY.md", "Ada likes tea")

    assert said(tmp_path, PEOPLE)[:2] == ("ok", "scope chat, 1 person")
    level, text, _ = said(tmp_path, 'eva = ["telegram:1"]')
    assert (level, "memory/people/ada" in text) == ("warn", True)
    assert "[people] has no effect on memory" in said(tmp_path, PEOPLE, "workspace")[1]
