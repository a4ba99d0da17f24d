"""The verbs of the command line as a person uses them: real processes on a real workspace."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.harness import ROOT, environment

EDGES = ROOT / "tests" / "data" / "edge-sessions"
COUNTS = {
    "cli:e01-nokey": 4,
    "cli:d01-two-on-a-line": 3,
    "cli:d08-bad-utf8": 2,
    "cli:d09-nondict": 4,
    "cli:e04-langobot": 0,
    "heartbeat": 4,
    "telegram:-100123:topic:5": 4,
}


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gateway(workspace: Path, *verb: str, config: Mapping[str, Any] | None = None) -> Ran:
    """Run one verb to its end."""
    done = forked.run(
        [sys.executable, "-m", "gateway", "--workspace", str(workspace), *verb],
        cwd=ROOT,
        env=environment({"http.port": 0, **(config or {})}),
        text=True,
        timeout=150,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def talked(workspace: Path) -> Path:
    """A workspace in which one chat was held."""
    assert gateway(workspace, "chat", "-m", "one", "--key", "cli:ann").out == "echo: one\n"
    return workspace


def test_sessions_are_listed_shown_and_ended(talked: Path) -> None:
    """A session that is empty is left as it is; of an unknown one the cure is told."""
    (row,) = gateway(talked, "sessions", "list", "--json").json
    by_key = gateway(talked, "sessions", "show", "cli:ann", "--json").json
    by_ulid = gateway(talked, "sessions", "show", row["id"], "--json").json
    unknown = gateway(talked, "sessions", "show", "cli:nobody")
    assert gateway(talked, "sessions", "new", "cli:ann").code == 0
    again = gateway(talked, "sessions", "new", "cli:ann")
    rows = gateway(talked, "sessions", "list", "--json").json

    assert (row["key"], row["message_count"], row["active"]) == ("cli:ann", 2, True)
    assert by_key == by_ulid
    assert by_key["session"] == row
    assert [line["content"] for line in by_key["messages"]] == ["one", "echo: one"]
    assert unknown.code == 1
    assert unknown.err.splitlines()[-2:] == [
        "error: there is no chat or session 'cli:nobody'",
        "try: chat-gateway sessions list",
    ]
    assert sorted((row["active"], row["message_count"]) for row in rows) == [(False, 2), (True, 0)]
    assert "no messages yet" in again.err


def test_sessions_clear_leaves_nothing_of_the_conversation(talked: Path) -> None:
    gateway(talked, "sessions", "new", "cli:ann")
    gateway(talked, "chat", "-m", "secret two", "--key", "cli:ann")

    assert gateway(talked, "sessions", "clear", "cli:ann", "--everything").code == 0

    assert gateway(talked, "sessions", "list", "--json").json == []
    left = b"".join(p.read_bytes() for p in talked.rglob("*") if p.is_file() and p.parent.name != "state")
    assert b"echo: one" not in left
    assert b"secret two" not in left
    assert gateway(talked, "chat", "-m", "three", "--key", "cli:ann").out == "echo: three\n"


def test_damaged_transcripts_are_shown_verified_and_repaired(workspace: Path) -> None:
    shutil.copytree(EDGES, workspace / "sessions", ignore=shutil.ignore_patterns("README*"))

    for key, count in COUNTS.items():
        shown = gateway(workspace, "sessions", "show", key, "--json")
        assert (shown.code, len(shown.json["messages"])) == (0, count), key
    rows = gateway(workspace, "sessions", "list", "--json").json
    assert len(rows) == len(list((workspace / "sessions").glob("*.jsonl")))
    before = gateway(workspace, "sessions", "verify", "--json")
    repaired = gateway(workspace, "sessions", "verify", "--repair", "--json")
    after = gateway(workspace, "sessions", "verify", "--json")

    assert before.code == 1
    files = {problem["file"] for problem in before.json}
    assert "sessions/cli_d01-two-on-a-line.jsonl" in files
    assert "sessions/cli_e08-users-only.jsonl" not in files
    assert all(problem["repaired"] for problem in repaired.json)
    assert (after.code, after.json) == (0, [])
    assert list((workspace / "sessions").glob("cli_d01-two-on-a-line.jsonl.corrupt-*"))


def test_doctor_says_ok_warn_or_fail_with_a_cure(talked: Path) -> None:
    (talked / "memory").mkdir(exist_ok=True)
    (talked / "memory" / "MEMORY.md").write_text("old notes")
    (talked / "sessions").chmod(0o755)

    locks = talked / "state" / "keys"
    locks.mkdir(exist_ok=True)
    with (locks / "cli_ann.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = {check["name"]: check for check in gateway(talked, "doctor", "--json").json}["locks"]
    checks = {check["name"]: check for check in gateway(talked, "doctor", "--json").json}

    assert {"configuration", "broker", "model", "locks", "permissions", "transcripts", "memory"} <= set(
        checks
    )
    assert checks["broker"]["level"] == "ok"
    assert (checks["model"]["level"], bool(checks["model"]["cure"])) == ("warn", True)
    assert checks["memory"]["level"] == "warn"
    assert "workspace" in checks["memory"]["cure"]
    assert checks["permissions"]["level"] == "warn"
    assert "chmod" in checks["permissions"]["cure"]
    assert (held["level"], bool(held["cure"])) == ("warn", True)
    assert "cli_ann" in held["text"]
    assert checks["locks"]["level"] == "ok"


def test_doctor_fails_where_the_broker_is_away(workspace: Path) -> None:
    ran = gateway(workspace, "doctor", "--json", config={"broker.url": "amqp://u:hidden-word@127.0.0.1:1/"})

    checks = {check["name"]: check for check in ran.json}
    assert ran.code == 1
    assert checks["broker"]["level"] == "fail"
    assert "hidden-word" not in ran.out + ran.err


def test_a_wrong_configuration_names_all_problems_and_is_78(workspace: Path) -> None:
    ran = gateway(workspace, "run", config={"limits.atempts": 3, "broker.partitions": 999})

    assert ran.code == 78
    assert "limits.atempts: unknown key" not in ran.out
    assert "unknown key limits.atempts; nearest: CHAT_GATEWAY_LIMITS__ATTEMPTS" in ran.err
    assert "broker.partitions" in ran.err
