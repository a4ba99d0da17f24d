"""Every setting of docs/seeds.md, set in a configuration file, has its effect in a running gateway.

``tests/docs/test_settings_held.py`` fails for a setting of that page which no test here is marked with, and
``Place.gateway`` for one that is marked and not set.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from tests.support.harness import Daemon, ask, until_running
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.place import archives, lines_of, transcript, write
from tests.support.until import until
from tests.system.settings_place import MODEL, Place, asked_before, request_of, told

SMALL = "tiny"


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, [name for mark in request.node.iter_markers("setting") for name in mark.args])


def noted(memory: str) -> Reply:
    arguments = {"history_entry": "[2026-01-31 09:15] They talked.", "memory_update": memory}
    return Reply(tool_calls=[("save_memory", json.dumps(arguments))])


def remembering(seen: Seen) -> Reply | None:
    """Answer what the background asks: notes that are too long, what shortens a text, and a fact."""
    system = str(seen.messages[0]["content"])
    if seen.tools == ["save_memory"] and "tea" in seen.text:
        return noted("# Tastes\n" + "- likes tea\n" * 200)
    if "which became too long" in system:
        return Reply(text="# Tastes\n- tea" if "tea" in seen.text else "## Name\nAda")
    if seen.tools == ["save_facts"]:
        fact = {"text": "Ada grows dahlias.", "category": "background", "confidence": 0.5, "message": 3}
        return Reply(
            tool_calls=[("save_facts", json.dumps({"facts": [fact] if "third" in seen.text else []}))]
        )
    return None


MEMORY = f"""
timezone = "Asia/Tokyo"
model.small = "openai/{SMALL}"
session = {{ recent_sessions = 4, recent_days = 30, retention_days = 60, idle_hours = 2 }}
history.full_tool_results = 0
memory = {{ window = 4, max_kb = 1, profile_max_kb = 1, versions = 1, version_days = 2 }}
facts = {{ idle_s = 0.2, max_turns = 2, confidence = 0.3 }}
people.ada = ["web:profile", "cli:ada"]
tools.direct = ["ls", "profile"]
"""


@pytest.mark.setting(
    *("workspace", "http.port", "model.name", "model.small", "timezone", "people", "tools.direct"),
    *("session.recent_sessions", "session.recent_days", "session.retention_days", "session.idle_hours"),
    *("memory.window", "memory.max_kb", "memory.profile_max_kb", "memory.versions", "memory.version_days"),
    *("facts.idle_s", "facts.max_turns", "facts.confidence", "history.full_tool_results"),
)
async def test_memory_and_the_life_of_sessions(place: Place) -> None:
    home = place.workspace
    chats = home / "memory" / "chats"
    for days in (20, 21, 22, 23, 24, 50):
        place.ended("web_recent", days=days)
    only_too_old = place.ended("web_old", days=70)
    place.open("web_idle", "before the silence", hours=3)
    for hours in (1, 2, 3):
        place.version("web_window", f"version {hours}", hours=hours)
    write(chats / "web_window" / "MEMORY.md", "# Memory\n- what stood there\n")
    expired, fresh = (place.version(name, "old", days=days) for name, days in (("web_x", 3), ("web_y", 1)))
    for name in ("one", "two", "three"):
        write(home / "files" / "chats" / "web_tool" / f"{name * 20}.txt", "")
    long = json.dumps({"section": "Name", "text": "Ada, " * 400})

    async with ModelServer() as model:
        model.chooses = remembering
        async with place.gateway(model, MEMORY) as daemon:
            await place.say(daemon, "web:recent", "what was there?")
            await place.say(daemon, "web:idle", "after the silence")
            await place.say(daemon, "web:tool", 'look [[tool:ls {"path": "."}]]', "what was in it?")
            await place.say(daemon, "web:profile", f"I am Ada [[tool:profile {long}]]")
            await place.say(daemon, "cli:ada", "who am I?")
            await place.say(daemon, "web:window", "I am here", "and I stay")
            await place.say(daemon, "web:tastes", "I like tea", "much tea")
            await place.say(daemon, "web:facts", "first thing", "second thing", "third thing")
            await until(lambda: (chats / "web_facts" / "facts.jsonl").exists())
            await until(lambda: "stub" in (chats / "web_window" / "MEMORY.md").read_text())
            await until(lambda: (chats / "web_tastes" / "MEMORY.md").exists())
            await place.say(daemon, "web:facts", "/new")
            await until(lambda: any(seen.aside == "summary" for seen in model.asides))
            await until(lambda: not only_too_old.exists() and not expired.exists())
            url = daemon.url
        background = [*model.asides, *(seen for seen in model.seen if seen.tools[:1] == ["save_memory"])]
        background += [seen for seen in model.seen if "became too long" in told(seen)]
        drawn = [seen for seen in model.seen if seen.tools == ["save_facts"]]

    recent = request_of(model, "what was there?")
    versions = [path.read_text() for path in (chats / "web_window" / "versions").glob("*-MEMORY.md")]
    assert url.endswith(f":{place.port}")
    assert lines_of(home, "web_recent")
    assert {seen.body["model"] for seen in model.turns if seen.tools} == {MODEL}
    assert {seen.body["model"] for seen in [*background, *drawn]} == {SMALL}
    assert "Asia/Tokyo (UTC+0900)" in told(recent)
    assert "### Name\nAda" in told(request_of(model, "who am I?"))
    assert set(recent.tools) == {"ls", "profile"}
    assert re.findall(r"They met (\d+) days ago", told(recent)) == ["23", "22", "21", "20"]
    assert len(archives(home, "web_idle")) == 1
    assert (chats / "web_tastes" / "MEMORY.md").read_text() == "# Tastes\n- tea\n"
    assert (home / "memory" / "people" / "ada" / "USER.md").read_text() == "## Name\nAda\n"
    assert versions == ["# Memory\n- what stood there\n"]
    assert fresh.exists()
    assert "second thing" in drawn[-1].text
    assert "first thing" not in drawn[-1].text
    assert "[ls: truncated, was " in told(request_of(model, "what was in it?"))


ANNABELLE = f"""
compaction.preset = "annabelle"
compaction.min_turns = 3
compaction.max_chars = 600
compaction.keep_recent_turns = 1
compaction.cooldown_s = 0
compaction.timeout_s = 0.5
model.small = "openai/{SMALL}"
history = {{ mode = "all", max_messages = 2, exchanges_always = 1 }}
memory.scope = "workspace"
facts = {{ enabled = false, idle_s = 0 }}
"""


@pytest.mark.setting(
    *('compaction.preset = "annabelle"', "compaction.min_turns", "compaction.max_chars"),
    *("compaction.keep_recent_turns", "compaction.cooldown_s", "compaction.timeout_s"),
    *("model.small", 'history.mode = "all"', "memory.scope", "facts.enabled"),
)
async def test_compaction_by_turns_and_what_a_workspace_shares(place: Place) -> None:
    home, key = place.workspace, "cli:long"
    write(home / "memory" / "MEMORY.md", "# Memory\n- shared by all\n")
    write(home / "memory" / "facts.jsonl", json.dumps({"id": "F1", "text": "Ada grows dahlias."}) + "\n")
    words = "and some words " * 20

    async with ModelServer() as model:
        async with place.gateway(model, ANNABELLE) as daemon:
            await place.say(daemon, "cli:all", "one", "two", "three", "four")
            everything = asked_before(model.turns[-1])
            await place.say(daemon, key, f"one {words}", f"two {words}")
            too_early = any(seen.is_summary for seen in model.seen)
            await place.say(daemon, key, f"three {words}")
            await daemon.said("compaction.done", within_s=20)
            left = lines_of_open(place, "cli_long")
            await place.say(daemon, key, f"four {words}", f"five {words}")
            await daemon.said("compaction.done", times=2, within_s=20)
            model.holds_summaries = True
            await place.say(daemon, "cli:slow", f"one {words}", f"two {words}", f"three {words}")
            await daemon.said("no summary within 0.5 s", within_s=20)
        summaries = [seen for seen in model.seen if seen.is_summary]

    assert not too_early
    assert [line["role"] for line in left] == ["system", "user", "assistant"]
    assert left[1]["content"].startswith("three ")
    assert len(archives(home, "cli_long")) == 2
    assert {seen.body["model"] for seen in summaries} == {SMALL}
    assert everything == ["one", "two", "three"]
    assert "shared by all" in told(model.turns[0])
    assert "dahlias" not in told(model.turns[0])
    assert not any(seen.tools == ["save_facts"] for seen in model.seen)


def lines_of_open(place: Place, stem: str) -> list[dict[str, str]]:
    lines = transcript(place.workspace, stem).read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


RELEVANT = """
compaction.preset = "off"
model.embedding = "openai/stub-embedding"
history = { mode = "relevant", relevance = 0.8, candidates = 6, max_messages = 4, exchanges_always = 1 }
memory.window = 1000
"""


@pytest.mark.setting(
    *('history.mode = "relevant"', "history.relevance", "history.candidates", "history.max_messages"),
    *("history.exchanges_always", "model.embedding"),
)
async def test_which_history_is_near(place: Place) -> None:
    near, half = "warm water sourdough bread", "warm water violin strings"
    far = ["granite kitchen", "penguins colony", "railway timetable"]
    talks = {
        "relevance": ([f"one {half}", f"two {far[0]}"], ["two"]),
        "always": ([f"one {far[0]}", f"two {far[1]}", f"six {far[2]}"], ["six"]),
        "candidates": ([f"one {near}", *(f"two {text}" for text in far)], ["two"]),
        "most": ([f"one {near}", f"two {near} again", f"six {far[0]}"], ["one", "six"]),
    }

    async with ModelServer() as model, place.gateway(model, RELEVANT) as daemon:
        found = {}
        for name, (texts, _) in talks.items():
            await place.say(daemon, f"cli:{name}", *texts, f"{near}")
            found[name] = asked_before(model.turns[-1])

    assert found == {name: kept for name, (_, kept) in talks.items()}
    assert model.embedded


LAST = """
compaction.preset = "off"
history = { mode = "last", last = 4, budget_tokens = 100 }
model.context_window = 2000
memory.window = 1000
limits.queue_mode = "followup"
session = { idle_hours = 0, cache_mb = 1 }
"""


@pytest.mark.setting(
    *('history.mode = "last"', "history.last", "history.budget_tokens"),
    *('limits.queue_mode = "followup"', "session.idle_hours = 0", "session.cache_mb"),
)
async def test_the_newest_messages_alone_and_nothing_held_beyond_its_room(place: Place) -> None:
    place.open("cli_days", "before the silence", days=3)
    held = asyncio.Event()

    async with ModelServer() as model, place.gateway(model, LAST) as daemon:
        await place.say(daemon, "cli:last", "one", "two", "three", "four")
        await place.say(daemon, "cli:budget", *(f"{name} {'x' * 100}" for name in ("one", "two", "six")))
        await place.say(daemon, "cli:days", "after the silence")
        answers = await queued(daemon, model, held)
        for number in range(4):
            await place.say(daemon, f"cli:big{number}", "x" * 400_000 + "[[say:ok]]")
        async with httpx.AsyncClient(base_url=daemon.url) as http:
            figures = (await http.get("/metrics")).text

    cached = re.search(r"^chat_gateway_cache_bytes (\S+)$", figures, re.MULTILINE)
    assert asked_before(request_of(model, "four")) == ["two", "three"]
    assert asked_before(request_of(model, "six")) == ["two"]
    assert "before the silence" in told(request_of(model, "after the silence"))
    assert answers == ["stub: running", "stub: waits", "stub: waits, too"]
    assert cached is not None
    assert 400_000 < float(cached[1]) <= 2**20


OFF = """
compaction.preset = "off"
model.context_window = 2000
memory.window = 1000
"""


@pytest.mark.setting('compaction.preset = "off"')
async def test_nothing_is_summed_up_before_the_provider_asks_for_it(place: Place) -> None:
    """With preset ``overlay`` the fourth message would be asked with a summary of the first."""
    texts = [f"{name} {'word ' * 400}" for name in ("one", "two", "three", "four", "five", "six")]

    async with ModelServer() as model, place.gateway(model, OFF) as daemon:
        await place.say(daemon, "cli:off", *texts)

    assert not any(seen.is_summary for seen in model.seen)
    assert asked_before(model.turns[-1]) == ["one", "two", "three", "four", "five"]


async def queued(daemon: Daemon, model: ModelServer, held: asyncio.Event) -> list[str]:
    """Send one message and two more while its turn runs; return the answers to the three."""
    model.chooses = lambda seen: Reply(text="stub: running", held=held) if seen.text == "running" else None
    texts = ("running", "waits", "waits, too")
    asked = []
    for waiting, text in enumerate(texts):
        asked.append(asyncio.create_task(ask(daemon, "cli:queue", f"queue-{waiting}", text)))
        await until_running(daemon, waiting)
    held.set()
    return [str((answer or {}).get("reply")) for answer in await asyncio.gather(*asked)]


ARCHIVE = """
compaction = { preset = "archive", threshold = 0.3 }
history.changing_parts = "system"
model.context_window = 20000
model.max_output_tokens = 300
memory.window = 1000
"""


@pytest.mark.setting(
    'compaction.preset = "archive"', "compaction.threshold", 'history.changing_parts = "system"'
)
async def test_a_compaction_that_begins_a_session_anew(place: Place) -> None:
    texts = ("fact-0001 " + "and some words " * 300, "then " + "word " * 5_000)

    async with ModelServer() as model, place.gateway(model, ARCHIVE) as daemon:
        await place.say(daemon, "cli:a", *texts)
        newest = request_of(model, "then")

    assert len(archives(place.workspace, "cli_a")) == 1
    assert lines_of_open(place, "cli_a")[0]["kind"] == "compact"
    assert "fact-0001" in str(newest.messages[0]["content"])
    assert "chat: cli:a" in str(newest.messages[0]["content"])
    assert str(newest.messages[-1]["content"]).startswith("then ")


OVERLAY = """
compaction = { preset = "overlay", reserve_tokens = 1000, keep_recent_tokens = 50, chars_per_token = 1 }
model.context_window = 40000
memory.window = 1000
"""


@pytest.mark.setting(
    *('compaction.preset = "overlay"', "compaction.reserve_tokens", "compaction.keep_recent_tokens"),
    *("compaction.chars_per_token", "model.context_window"),
)
async def test_a_compaction_that_is_laid_over_the_history(place: Place) -> None:
    """One message brings the request over the window; the other would only with the usual reserve."""
    before = "fact-0001 " + "and some words " * 530

    async with ModelServer() as model, place.gateway(model, OVERLAY) as daemon:
        await place.say(daemon, "cli:fits", before, "then " + "x" * 22_000)
        fits = not any(seen.is_summary for seen in model.seen)
        await place.say(daemon, "cli:over", before, "then " + "x" * 32_000)

    lines = lines_of(place.workspace, "cli_over")
    assert fits
    assert [line.get("kind") for line in lines].count("overlay") == 1
    assert not archives(place.workspace, "cli_over")


BUDGET = """
compaction = { preset = "budget", threshold = 0.2, keep_recent_tokens = 50 }
history.budget_tokens = 1000
memory.window = 1000
"""


@pytest.mark.setting('compaction.preset = "budget"', "compaction.threshold", "history.budget_tokens")
async def test_a_compaction_by_the_budget_of_the_history(place: Place) -> None:
    async with ModelServer() as model:
        async with place.gateway(model, BUDGET) as daemon:
            await place.say(daemon, "cli:a", *(f"fact-000{number} {'word ' * 50}" for number in range(3)))
            await daemon.said("compaction.done", within_s=20)
            await place.say(daemon, "cli:a", "and then?")
        opening = next(seen for seen in model.turns[-1].messages if seen["role"] != "system")

    assert opening["role"] == "assistant"
    assert str(opening["content"]).startswith("<summary>")
