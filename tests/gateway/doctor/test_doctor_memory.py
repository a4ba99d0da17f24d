"""What ``doctor`` and the daemon say of notes that nobody sees."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gateway.config import agents
from gateway.config.load import load
from gateway.doctor.finding import Check
from gateway.doctor.services import check_embedding
from tests.support.model_server import ModelServer, Vectors
from tests.support.place import write


def level(workspace: Path, scope: str) -> str:
    return agents.check_memory(load(workspace=workspace, environ={"CHAT_GATEWAY_MEMORY__SCOPE": scope}))[0]


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
    return agents.check_memory(load(workspace / "c.toml", workspace=workspace, environ={}))


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


KEY = "sk-very-secret-4711"


async def found(workspace: Path, *, took_s: float = 0.0, **config: str) -> list[Check]:
    """Look, with a clock by which the answer takes so long."""
    environ = {f"CHAT_GATEWAY_{name.upper()}": value for name, value in config.items()}
    clock = itertools.count(step=took_s).__next__
    return await check_embedding(load(workspace=workspace, environ=environ), clock=clock)


@pytest.mark.parametrize(
    ("reply", "took_s", "level", "words"),
    [
        (Vectors(), 2.0, "ok", "openai/stub-embedding answers"),
        (Vectors(status=401), 0.0, "fail", "status 401"),
        (Vectors("nan"), 0.0, "fail", "of length 0"),
        (Vectors(), 2.1, "warn", "took 2.1 s; a turn waits at most 2 s"),
    ],
)
@pytest.mark.slow
async def test_the_embedding_model_is_asked_like_the_model(
    tmp_path: Path, reply: Vectors, took_s: float, level: str, words: str
) -> None:
    """It answers in time, refuses, talks nonsense or takes too long; the key is not shown."""
    async with ModelServer() as server:
        server.vectors.append(reply)
        [finding] = await found(
            tmp_path,
            took_s=took_s,
            model__name="openai/stub",
            model__api_base=server.url,
            model__api_key=KEY,
            model__embedding="openai/stub-embedding",
        )

    assert finding.level == level
    assert words in finding.text
    assert KEY not in str(finding)
    assert (finding.cure == "") == (level == "ok")


@pytest.mark.slow
async def test_one_that_is_missed_is_named_and_else_nothing_is_said(tmp_path: Path) -> None:
    """Mode ``relevant`` works without one, but not as it could; ``echo`` has no history."""
    relevant = {"history__mode": "relevant"}

    [missed] = await found(tmp_path, model__name="openai/stub", **relevant)

    assert missed.level == "warn"
    assert "newest exchanges" in missed.text
    assert "model.embedding" in missed.cure
    assert await found(tmp_path, model__name="openai/stub") == []
    assert await found(tmp_path, model__name="echo", **relevant) == []
