"""What earlier commits of this repository wrote, killed in mid-work, is upgraded whole, and can go back."""

from __future__ import annotations

import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.earlier import earlier
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model

pytestmark = guarantee(
    "storage",
    "A workspace of an earlier version is upgraded completely, and a downgrade makes it usable there again.",
)

RECORDED = ROOT / "tests" / "data" / "old-workspaces"
# The first that could answer; the first with platforms, jobs and pairing; facts and versions; agents.
FIRST, PLATFORMS, FACTS, AGENTS = "1-75e5a27", "2-b8dd3a7", "3-bcba299", "4-15e006a"
TWO_AGENTS: dict[str, Any] = {"coder": {"persona": "You are CODER."}}
# What all of them hold.
CHATS = ("cli_ada", "cli_ended", "cli_memory", "web_page")


def unpacked(name: str, folder: Path) -> Path:
    """Unpack what was recorded, as if it had been left yesterday."""
    workspace = folder / name
    with tarfile.open(RECORDED / f"{name}.tar.xz") as tar:
        tar.extractall(workspace, filter="data")
    # The job of every other hour is not due while the test runs, whatever the day.
    soon = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    for path in workspace.rglob("jobs.json"):
        jobs = json.loads(path.read_text())
        for job in jobs["jobs"]:
            if job["schedule"]["kind"] == "every":
                job["state"]["nextRunAtMs"] = soon
        path.write_text(json.dumps(jobs, indent=2))
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT")
    for journal in (workspace / "state" / "keys").glob("*.log"):
        journal.write_text(journal.read_text().replace("2026-01-06T", yesterday))
    return workspace


def told(workspace: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Read all that was said, by chat, ended sessions first."""
    stems = sorted(path.stem for path in (workspace / "sessions").glob("*.jsonl"))
    fields = ("role", "content", "message_id", "tool_calls", "final")
    return {
        stem: [tuple(json.dumps(line.get(name)) for name in fields) for line in lines_of(workspace, stem)]
        for stem in stems
    }


def configured(model: ModelServer) -> dict[str, Any]:
    return with_model(
        model,
        agents=TWO_AGENTS,
        bindings=[{"agent": "coder", "chat": "cli:bound"}],
        **{"model.context_window": 6000, "facts.enabled": False, "memory.window": 1000},
    )


async def rows(workspace: Path, config: dict[str, Any], *verb: str) -> Any:
    code, printed = await command(workspace, *verb, "--json", config=config)
    assert code == 0, (verb, printed)
    return json.loads(printed)


@pytest.mark.parametrize("name", [FIRST, PLATFORMS, FACTS, AGENTS])
async def test_it_is_upgraded_and_gone_on_with(tmp_path: Path, name: str) -> None:
    """Letters that waited are answered in order; nothing is lost, asked twice or mixed; all is found."""
    workspace = unpacked(name, tmp_path)
    before = told(workspace)
    async with ModelServer() as model:
        config = configured(model)
        async with Daemon(workspace, config=config) as daemon:
            await ask(daemon, "cli:new", "cli:w3", "waits alone")
            await ask(daemon, "cli:ada", "cli:w2", "waits second")
            again = [
                await ask(daemon, key, id_, text)
                for key, id_, text in (
                    ("cli:ada", "cli:a1", "my bicycle is green"),
                    ("cli:ended", "cli:e1", "the first conversation about otters"),
                    ("cli:ended", "cli:e2", "/new"),
                )
            ]
            asked = sorted(seen.text.splitlines()[-1] for seen in model.turns)
            await ask(daemon, "cli:ada", "cli:n1", "is it still green")
            bound = await ask(daemon, "cli:bound", "cli:n2", "/agent")
            async with httpx.AsyncClient() as client:
                where = f"{daemon.url}/v1/memory/search"
                hits = (await client.get(where, params={"key": "cli:ada", "q": "Lisbon"})).json()["hits"]
            assert await daemon.stop() == 0
        request = json.dumps(model.turns[-1].body)
        after = told(workspace)

        assert asked == ["waits alone", "waits first", "waits second"]
        assert [(answer or {})["reply"].split(".")[0] for answer in again] == [
            "stub: my bicycle is green",
            "stub: the first conversation about otters",
            "A new conversation begins",
        ]
        assert "the harbour lies in Lisbon" in request
        assert "The stub remembers this" in request
        assert "waits second" in request
        assert bound is not None
        assert bound["reply"].startswith("coder answers here.")
        assert any("Lisbon" in hit["text"] for hit in hits)
        for stem in CHATS:
            assert after[stem][: len(before[stem])] == before[stem], stem
        assert all(after[stem][: len(lines)] == lines for stem, lines in before.items())
        assert await rows(workspace, config, "sessions", "verify") == []
        assert [row["key"] for row in await rows(workspace, config, "parked", "list")] == ["cli:parked"]
        jobs = await rows(workspace, config, "cron", "list")
        assert len(jobs) == (0 if name == FIRST else 2)
        # Who asked meanwhile has to ask again: a code is good for an hour.
        people = await rows(workspace, config, "pairing", "list")
        assert sorted(row["state"] for row in people) == ([] if name == FIRST else ["approved"])
        facts = await rows(workspace, config, "memory", "facts", "cli:facts")
        assert bool(facts) == (name in (FACTS, AGENTS))
        back = await command(workspace, "downgrade", "--json", config=config)
    # What a commit left that knew numbers was in this form already.
    assert back[0] == (1 if name == AGENTS else 0)
    assert (workspace / "state" / "workspace.json").exists() == (name == AGENTS)
    assert (workspace / "state" / "telegram-commands").exists() == (name == PLATFORMS)
    if name != AGENTS:
        since = {row["kind"]: row["files"] for row in json.loads(back[1])["since"]}
        assert since["transcript"] >= len(CHATS) - 2, since


async def test_the_program_of_then_goes_on_after_a_downgrade(tmp_path: Path) -> None:
    """Nobody goes back beside a daemon; what was said meanwhile is in the older program's next request."""
    prefix = earlier("b8dd3a7", tmp_path / "program")
    workspace = unpacked(PLATFORMS, tmp_path)
    async with ModelServer() as model:
        config = configured(model)
        async with Daemon(workspace, config=config) as daemon:
            await ask(daemon, "cli:ada", "cli:n1", "the new one was here")
            refused = await command(workspace, "downgrade", config=config)
            assert await daemon.stop() == 0
        assert refused[0] == 73
        assert (await command(workspace, "downgrade", config=config))[0] == 0
        async with Daemon(workspace, config=with_model(model), prefix=prefix) as then:
            answer = await ask(then, "cli:ada", "cli:o1", "and the old one again")
            known = await ask(then, "cli:ada", "cli:n1", "the new one was here")
            assert await then.stop() == 0
        request = json.dumps(model.turns[-1].body)
        assert answer is not None
        assert known is not None
        assert known["reply"] == "stub: the new one was here"
        assert "the new one was here" in request
        assert "the harbour lies in Lisbon" in request
        assert "The stub remembers this" in request
        # And forth again: what the older program said is there.
        async with Daemon(workspace, config=config) as daemon:
            await ask(daemon, "cli:ada", "cli:n3", "the last word")
            assert await daemon.stop() == 0
        assert "and the old one again" in json.dumps(model.turns[-1].body)
    assert len(list((workspace / "state").glob("before-upgrade-0-*"))) == 1
