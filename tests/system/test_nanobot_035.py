"""What nanobot 0.3.5 left, imported, and what a running gateway then tells its model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.cli_place import Ran, job, tree, write
from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer

AT = "2026-11-02T09:00:00.000000"
CONTINUE = "Continue the active task from the working-memory checkpoint above."
ID = "0123456789abcdef" * 2


def said(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "timestamp": AT, **fields}


def nanobot(root: Path) -> Path:
    """A compacted conversation with a command and pictures, a job that only waits, a history."""
    lines = [
        said("user", "q0"),
        said("assistant", "a0"),
        said("user", CONTINUE, _hidden_history=True),
        said("user", "what is this?", media=[str(root / "media" / "telegram" / "cat.png")]),
        said("assistant", "a cat"),
        said("user", "and this?", media=["/etc/hostname", "gone.png"]),
        said("assistant", "I cannot see it"),
        said("user", "/status", _command=True),
        said("assistant", "nanobot 0.3.5 is fine", _command=True),
    ]
    summary = {"text": "They rented a boat.", "last_active": AT}
    metadata = {"_last_summary": summary, "chat": "direct", "answers_to": ["telegram:9"]}
    head = {"_type": "metadata", "key": "cli:ada", "created_at": AT, "updated_at": AT, "metadata": metadata}
    head |= {"last_archived": 2, "last_consolidated": 2}
    write(root / "sessions" / ID / "Y2xpOmFkYQ.jsonl", head, *lines)
    picture = root / "media" / "telegram" / "cat.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    work = root / "workspace"
    params = job("cafe0001") | {"schedule": {"kind": "every", "every_ms": 7200000}}
    write(work / "cron" / "action.jsonl", {"action": "add", "params": params})
    entry = {"cursor": 1, "timestamp": "2026-11-01 10:00", "content": "They chose the blue\n\nboat."}
    write(work / "memory" / "history.jsonl", entry, {"cursor": 2, "content": ""})
    secret = root.parent / "secret.txt"
    secret.write_text("not part of the workspace")
    (work / "memory" / "MEMORY.md").symlink_to(secret)
    return root


def test_a_workspace_of_0_3_5_goes_on_as_it_was(tmp_path: Path) -> None:
    """Its summary opens the history, its own lines are left out, its pictures, job and history come along."""
    source, place = nanobot(tmp_path / "dot-nanobot"), tmp_path / "w"
    before = tree(source)

    done = Ran(place, "sessions", "import", "--from", "nanobot", source)

    assert done.code == 1
    assert tree(source) == before
    assert "MEMORY.md is skipped" in done.err
    assert not (place / "memory" / "MEMORY.md").exists()
    for lost in ("commands and their answers (2)", "hidden messages of nanobot itself"):
        assert lost in done.err
    assert "images and files outside the imported folder (2)" in done.err
    history = (place / "memory" / "HISTORY.md").read_text()
    assert history == "[2026-11-01 10:00] They chose the blue\nboat.\n\n"
    [row] = json.loads(Ran(place, "cron", "list", "--json").out)
    assert (row["id"], row["schedule"]["everyMs"]) == ("cafe0001", 7200000)
    head = json.loads((place / "sessions" / "cli_ada.jsonl").read_text().splitlines()[0])
    assert not {"chat", "answers_to", "_last_summary"} & head["metadata"].keys()
    [picture] = [path for path in (place / "media").rglob("*") if path.is_file()]
    assert picture.read_bytes().startswith(b"\x89PNG")

    request, hits = asyncio.run(asked(place))
    assert "They rented a boat." in request
    assert "data:image/png" in request
    assert "[image: hostname]" in request
    for absent in (CONTINUE, "/status", "0.3.5 is fine", "q0", "not part of the workspace"):
        assert absent not in request, absent
    assert any("blue" in hit["text"] for hit in hits)


async def asked(place: Path) -> tuple[str, list[dict[str, Any]]]:
    """Run a gateway there: the request of the next message, and what a search for the boat finds."""
    async with ModelServer() as model:
        config = {"model.name": "openai/stub", "model.api_base": model.url, "memory.scope": "workspace"}
        config["facts.enabled"] = "false"
        async with Daemon(place, config=config) as daemon:
            assert await ask(daemon, "cli:ada", "cli:1", "go on") is not None
            async with httpx.AsyncClient(base_url=daemon.url, timeout=30, trust_env=False) as client:
                found = await client.get("/v1/memory/search", params={"key": "cli:ada", "q": "blue boat"})
            assert await daemon.stop() == 0
    return json.dumps(model.seen[-1].messages), found.json()["hits"]


def test_a_single_file_names_its_pictures(tmp_path: Path) -> None:
    """They lie elsewhere; the text says which they were."""
    source = nanobot(tmp_path / "dot-nanobot") / "sessions" / ID / "Y2xpOmFkYQ.jsonl"

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot-b64", source)

    assert done.code == 0
    assert "images and files outside the imported folder (3)" in done.err
    shown = json.loads(Ran(tmp_path / "w", "sessions", "show", "cli:ada", "--json").out)["messages"]
    assert [line["content"] for line in shown if line["role"] == "user"] == [
        "q0",
        "what is this?\n[image: cat.png]",
        "and this?\n[image: hostname]\n[image: gone.png]",
    ]
    [row] = json.loads(Ran(tmp_path / "w", "sessions", "list", "--json").out)
    assert row["last_message_at"].startswith("2026-11-02T")


def test_doctor_says_that_nanobot_moved_the_transcripts(tmp_path: Path) -> None:
    """0.3.5 leaves its mark in a workspace that it opened."""
    Ran(tmp_path, "sessions", "list")
    (tmp_path / ".nanobot").mkdir()
    (tmp_path / ".nanobot" / "workspace-id").write_text(f"{ID}\n")

    done = Ran(tmp_path, "doctor", "--json")

    found = [row for row in json.loads(done.out) if row["name"] == "transcripts" and row["level"] == "warn"]
    assert len(found) == 1
    assert "nanobot 0.3.5" in found[0]["text"]
    assert f"sessions import --from nanobot ~/.nanobot/sessions/{ID}" in found[0]["cure"]
