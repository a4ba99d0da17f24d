"""A nanobot workspace taken over whole: its conversations, notes and jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.cli_place import SAMPLES, Ran, job, listed, nanobot_folder, shown, tree


@pytest.fixture
def nanobot(tmp_path: Path) -> Path:
    return nanobot_folder(tmp_path / "dot-nanobot")


def test_a_workspace_is_taken_over_whole_and_stays_as_it_was(tmp_path: Path, nanobot: Path) -> None:
    before = tree(nanobot)

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot)

    assert done.code == 0, done.err
    assert tree(nanobot) == before
    assert sorted(line.split()[0] for line in done.out.splitlines()) == [
        "telegram:1",
        "telegram:2",
        "telegram:3",
    ]
    assert [line["content"] for line in shown(tmp_path / "w", "telegram:3")] == ["newest folder"]
    for name in ("MEMORY.md", "HISTORY.md"):
        note = tmp_path / "w" / "memory" / name
        assert note.read_bytes() == (nanobot / "workspace" / "memory" / name).read_bytes()
        assert note.stat().st_mode & 0o777 == 0o600
    rows = json.loads(Ran(tmp_path / "w", "cron", "list", "--json").out)
    assert sorted(row["id"] for row in rows) == ["aaaa1111", "bbbb2222"]
    assert 'memory.scope = "workspace"' in done.err
    assert "broken.jsonl is skipped" in done.err
    assert "AGENTS.md" in done.err


def test_taken_over_again_nothing_doubles(tmp_path: Path, nanobot: Path) -> None:
    Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot)
    before = {name: data for name, (data, _) in tree(tmp_path / "w").items() if not name.startswith("state/")}

    config = tmp_path / "c.toml"
    config.write_text('[memory]\nscope = "workspace"\n')
    again = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot, "--config", config)

    assert (again.code, again.out) == (0, "")
    after = {name: data for name, (data, _) in tree(tmp_path / "w").items() if not name.startswith("state/")}
    assert after == before
    assert "memory.scope" not in again.err


def test_what_is_ours_is_never_written_over(tmp_path: Path, nanobot: Path) -> None:
    """Notes and jobs that say something else stay, the rest is taken, and each one has its cure."""
    ours = tmp_path / "w"
    (ours / "memory").mkdir(parents=True)
    (ours / "memory" / "MEMORY.md").write_text("Ours.\n")
    (ours / "cron").mkdir()
    (ours / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": [job("aaaa1111", "ours")]}))

    done = Ran(ours, "sessions", "import", "--from", "nanobot", nanobot)

    assert done.code == 1
    assert (ours / "memory" / "MEMORY.md").read_text() == "Ours.\n"
    assert (ours / "memory" / "HISTORY.md").exists()
    jobs = {
        row["id"]: row["payload"]["message"]
        for row in json.loads((ours / "cron" / "jobs.json").read_text())["jobs"]
    }
    assert jobs == {"aaaa1111": "ours", "bbbb2222": "what is new?"}
    assert "error: memory/MEMORY.md exists here with other text" in done.err
    assert "try: chat-gateway cron remove aaaa1111" in done.err
    assert len(listed(ours)) == 3


def test_of_two_files_for_one_key_the_newer_is_active(tmp_path: Path) -> None:
    Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", SAMPLES / "v014")
    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot-b64", SAMPLES / "v035")

    rows = [row for row in listed(tmp_path / "w") if row["key"] == "telegram:999"]
    assert done.code == 0
    assert sorted((row["active"], row["message_count"]) for row in rows) == [(False, 6), (True, 6)]


def test_the_workspace_itself_is_refused(tmp_path: Path) -> None:
    Ran(tmp_path, "sessions", "import", "--from", "nanobot", SAMPLES / "v014")

    done = Ran(tmp_path, "sessions", "import", "--from", "nanobot", tmp_path)

    assert done.code == 1
    assert "is this gateway's own workspace" in done.err
