"""What ``doctor`` and the daemon say of notes that nobody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import memory_scope
from gateway.config.load import load


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
