"""A running gateway tells its model what lies in the workspace, and gives it the tools that are allowed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.harness import Daemon, answer_to, command
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model, write

KEY = "web:a"


async def test_what_lies_in_the_workspace_reaches_the_model(tmp_path: Path) -> None:
    """Persona, playbook and skill are told; ``edit``, ``grep`` and ``skill_read`` work from a chat."""
    write(tmp_path / "AGENTS.md", "You are Iris.")
    write(
        tmp_path / "playbooks" / "ship.md",
        "---\nname: Ship\npatterns: ['\\bship\\b']\n---\nAsk for a version.",
    )
    write(tmp_path / "playbooks" / "broken.md", "no head")
    write(tmp_path / "skills" / "lost" / "SKILL.md", "---\nname: lost\n")
    write(tmp_path / "skills" / "tax" / "SKILL.md", "---\nname: tax\ndescription: Sums\n---\nStep one.")
    write(tmp_path / "files" / "chats" / "web_a" / "a.txt", "red\ngreen\n")
    edit = '[[tool:edit {"path": "a.txt", "old": "red", "new": "blue"}]]'
    look = '[[tool:grep {"pattern": "BLUE", "ignore_case": true}]]'
    read = '[[tool:skill_read {"name": "tax"}]]'

    async with ModelServer() as model:
        config = with_model(model)
        async with Daemon(tmp_path, config=config) as daemon:
            answer = await answer_to(daemon, KEY, "0", f"ship it {edit}{look}{read}")
            _, listed = await command(tmp_path, "sessions", "list", "--json", config=config)
            _, doctor = await command(tmp_path, "doctor", "--json", config=config)
            assert await daemon.stop() == 0
        system, user = model.seen[0].messages[:2]
        offered = set(model.seen[0].tools)

    assert answer["reply"].startswith("stub: ship it")
    assert {"read", "write", "edit", "ls", "grep", "skill_read"} <= offered
    assert "## Instructions\nYou are Iris." in system["content"]
    assert "<name>tax</name>" in system["content"]
    assert user["content"].startswith("<gateway-context>\n")
    assert "Ask for a version." in user["content"]
    assert user["content"].count("chat: web:a\n") == 1
    assert [row["model"] for row in json.loads(listed)] == ["openai/stub"]
    lines = lines_of(tmp_path, "web_a")
    assert lines[0]["content"].startswith("ship it")
    assert [line["content"] for line in lines if line["role"] == "tool"] == [
        "replaced 1 passage in a.txt",
        "a.txt:1: blue",
        "Step one.",
    ]
    skipped = [check for check in json.loads(doctor) if check["name"] == "instructions"]
    assert [check["level"] for check in skipped] == ["warn", "warn"]
    assert "playbooks/broken.md is skipped" in skipped[0]["text"]
    assert "skills/lost/SKILL.md is skipped" in skipped[1]["text"]
