"""kill -9 at each hand-over: nothing is lost, nothing is answered twice, nothing changes its order."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from session.turn.commands import REOPENED, WITHDRAWN
from tests.support.foreign import foreign, inbound, put
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask, status
from tests.support.model_server import model_process, read_log
from tests.support.place import archives, contents, head_of, is_named, lines_of, transcript, with_model
from tests.support.until import until
from tests.support.verdict import check

KEYS = ("ann", "bob", "cy")
PER_KEY = 4

ECHO_POINTS = [
    "append.before:2",
    "append.after:5",
    "commit.before:4",
    "commit.after:7",
    "settle.before:3",
    "settle.after:6",
]
RABBIT_POINTS = ["publish.before:4", "publish.after:4", "ack.before:2", "ack.after:5"]
MEMORY_POINTS = [  # the session has its name by then: one call in the budget, and line 1 renewed twice
    "state_file.before:3",
    "state_file.after:3",
    "history.before:1",
    "history.after:1",
    "notes.before:1",
    "notes.after:1",
    "checkpoint.before:3",
    "checkpoint.after:3",
]
NEW_POINTS = ["rename.before:1", "rename.after:1", "rename.after:2", "journal.before:1", "journal.after:1"]
BACK_POINTS = [
    *("rename.after:2", "rename.before:3", "rename.after:3", "rename.after:4", "journal.before:2"),
    *("journal.before:3", "append.after:4", "append.after:6", "append.after:7"),
]
MODEL_POINTS = ["ask.before:2", "ask.after:3", "tool.before:1", "tool.after:2", "append.after:4"]


@asynccontextmanager
async def dying(workspace: Path, point: str, config: dict[str, Any]) -> AsyncIterator[Daemon]:
    """Run a daemon that dies at ``point``, and then one that does not, under one name."""
    role = "session" if "broker.url" in config else "all"
    daemon = await Daemon(workspace, role=role, config=config, kill_at=point).start()
    try:
        yield daemon
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.signal(signal.SIGKILL)
        await daemon.died()


async def persistent(daemon: Daemon, key: str, id: str, text: str) -> str:
    """Ask over HTTP again and again under the same id, as a careful client does, until there is a reply."""
    async with asyncio.timeout(150):
        while True:
            answer = await ask(daemon, key, id, text, wait_s=20)
            if answer is not None:
                return str(answer["reply"])
            await asyncio.sleep(0.1)


class Through:
    """Sends the messages of chats through the death of a daemon, over HTTP or as a foreign program.

    ``stem`` and ``ids`` name a chat's file and its messages there.
    """

    def __init__(self, queue: dict[str, Any]) -> None:
        self.queue = queue
        self._channel = "foreign" if queue else "web"

    def key(self, chat: str) -> str:
        return f"{self._channel}:{chat}"

    def stem(self, chat: str) -> str:
        return f"{self._channel}_{chat}"

    def ids(self, chat: str, numbers: Iterable[int]) -> list[str]:
        return [f"{chat}{number}" if self.queue else f"web:{chat}{number}" for number in numbers]

    async def begin(self, daemon: Daemon, chat: str, text: str) -> None:
        """Send the first message of a chat alone."""
        if self.queue:
            body = inbound(self.key(chat), f"{chat}0", text)
            await put(self.queue["broker.url"], body, name=self.queue["broker.name"])
        else:
            await persistent(daemon, self.key(chat), f"{chat}0", text)

    async def say(self, daemon: Daemon, texts: dict[str, list[str]]) -> dict[str, str]:
        """Return the reply to each message; over RabbitMQ all are put at once, and no text differs."""
        if not self.queue:
            return await self._over_http(daemon, texts)
        async with foreign(self.queue["broker.url"], name=self.queue["broker.name"]) as client:
            for chat, lines in texts.items():
                for number, text in enumerate(lines):
                    await client.put(inbound(self.key(chat), f"{chat}{number}", text))
            await daemon.reborn()
            taken = await client.collect("foreign", sum(map(len, texts.values())), timeout_s=90)
        once_each(taken)
        in_order(taken)
        return {reply["in_reply_to"]: reply["text"] for reply in taken}

    async def _over_http(self, daemon: Daemon, texts: dict[str, list[str]]) -> dict[str, str]:
        """Send each chat's messages one after the other, through the death and after it."""
        replies: dict[str, str] = {}

        async def chat(name: str) -> None:
            for number, text in enumerate(texts[name]):
                replies[f"{name}{number}"] = await persistent(daemon, f"web:{name}", f"{name}{number}", text)

        async with asyncio.TaskGroup() as group:
            group.create_task(daemon.reborn())
            for name in texts:
                group.create_task(chat(name))
        return replies


@pytest.fixture
def through(queue: dict[str, Any]) -> Through:
    return Through(queue and {**queue, "broker.partitions": 2})


def once_each(replies: list[dict[str, Any]]) -> None:
    """Each id came with one text, however often the kill made it come."""
    texts: dict[str, set[str]] = {}
    for reply in replies:
        texts.setdefault(reply["id"], set()).add(reply["text"])
    assert {name: len(found) for name, found in texts.items() if len(found) > 1} == {}


def in_order(replies: list[dict[str, Any]]) -> None:
    """The first delivery of each reply keeps the order of its chat."""
    seen: dict[str, list[str]] = {}
    for reply in replies:
        if reply["id"] not in seen.setdefault(reply["key"], []):
            seen[reply["key"]].append(reply["id"])
    for ids in seen.values():
        assert ids == sorted(ids)


@guarantee("loss", "A kill at any hand-over loses no message and repeats no answer, with either broker.")
@guarantee("order", "A kill at any hand-over keeps the replies in order over RabbitMQ.")
@pytest.mark.parametrize(
    ("queue", "point"),
    [
        *(("rabbitmq", point) for point in ECHO_POINTS + RABBIT_POINTS),
        *(("embedded", point) for point in ECHO_POINTS),
    ],
    indirect=["queue"],
)
async def test_a_kill_loses_and_repeats_nothing(tmp_path: Path, through: Through, point: str) -> None:
    texts = {name: [f"{name} says {n}" for n in range(PER_KEY)] for name in KEYS}
    async with dying(tmp_path, point, through.queue) as daemon:
        replies = await through.say(daemon, texts)

    verdict = check(tmp_path, {through.stem(name): through.ids(name, range(PER_KEY)) for name in KEYS})
    assert verdict.sound, verdict
    assert replies == {f"{name}{n}": f"echo: {name} says {n}" for name in KEYS for n in range(PER_KEY)}


@guarantee("once", "`/new` ends one session and starts one, wherever the gateway is killed.")
@pytest.mark.parametrize("point", NEW_POINTS)
async def test_a_new_that_dies_ends_one_session_and_begins_one(
    tmp_path: Path, point: str, through: Through
) -> None:
    async with dying(tmp_path, point, through.queue) as daemon:
        replies = await through.say(daemon, {"ann": ["one", "two", "/new", "three"]})

    stem = through.stem("ann")
    assert len(archives(tmp_path, stem)) == 1
    assert contents(tmp_path, stem) == ["one", "echo: one", "two", "echo: two", "three", "echo: three"]
    assert "new conversation" in replies["ann2"]
    assert check(tmp_path, {stem: through.ids("ann", (0, 1, 3))}).sound


@pytest.mark.parametrize(
    ("queue", "point"),
    [("embedded", point) for point in MEMORY_POINTS] + [("rabbitmq", point) for point in MEMORY_POINTS[1::2]],
    indirect=["queue"],
)
async def test_a_consolidation_that_dies_is_done_once(tmp_path: Path, through: Through, point: str) -> None:
    """One paragraph for each stretch, the pointer behind the last one, and the model asked once for it."""
    log = tmp_path / "model.log"
    workspace = tmp_path / "workspace"
    stem, ids = through.stem("ann"), through.ids("ann", range(4))
    async with model_process(log) as (url, _):
        config = with_model(url, **{"memory.window": 4}, **through.queue)
        async with dying(workspace, point, config) as daemon:
            await through.begin(daemon, "ann", "message 0")
            # Nothing else of the background runs beside its memory.
            await until(lambda: is_named(workspace, stem), 120)
            await through.say(daemon, {"ann": [f"message {number}" for number in range(4)]})
            await persistent(daemon, through.key("ann"), "last", "and on")
            await settled(daemon)

    folder = workspace / "memory" / "chats" / stem
    marks = re.findall(r"messages (\d+)-(\d+) ", (folder / "HISTORY.md").read_text())
    ends = [0, *(int(stop) + 1 for _, stop in marks)]
    assert [int(start) for start, _ in marks] == ends[:-1]
    assert head_of(transcript(workspace, stem))["last_consolidated"] == ends[-1]
    assert "The stub remembers this." in (folder / "MEMORY.md").read_text()
    assert check(workspace, {stem: [*ids, "web:last"]}).sound
    asked = [entry for entry in read_log(log) if entry["event"] == "arrived"]
    about_memory = [entry for entry in asked if entry["tools"] == ["save_memory"]]
    assert len(marks) <= len(about_memory) <= len(marks) + (point == "state_file.before:3")


async def settled(daemon: Daemon) -> None:
    """Wait until no consolidation runs or waits."""

    async def so() -> bool:
        memory = (await status(daemon))["memory"]
        return bool(memory["running"] == memory["waiting"] == 0)

    await until(so, 120)


@guarantee("once", "A crash costs at most the one model request that was in progress.")
@pytest.mark.parametrize("point", MODEL_POINTS)
async def test_tools_and_model_calls_survive_with_one_bill(
    tmp_path: Path, point: str, through: Through
) -> None:
    """At most one request per message and round, plus the one that its chat had under way at the kill."""
    log = tmp_path / "model.log"
    workspace = tmp_path / "workspace"
    read, write = '[[tool:ls {"path": "."}]]', '[[tool:write {"path": "note.txt", "content": "x"}]]'
    texts = {"ann": [f"{read} ann 1", "ann 2"], "bob": [f"{write} bob 1", "bob 2"]}
    async with (
        model_process(log) as (url, _),
        dying(workspace, point, with_model(url, **through.queue)) as daemon,
    ):
        await through.say(daemon, texts)

    verdict = check(workspace, {through.stem(name): through.ids(name, range(2)) for name in texts})
    assert verdict.sound, verdict
    asked = [entry["text"] for entry in read_log(log) if entry["event"] == "arrived"]
    rounds = 2 + 1
    for name in texts:
        assert rounds <= sum(name in text for text in asked) <= rounds + 1
    results = [line for line in lines_of(workspace, through.stem("bob")) if line["role"] == "tool"]
    assert len(results) == 1


@pytest.mark.parametrize("point", BACK_POINTS)
async def test_going_back_that_dies_happens_once(tmp_path: Path, point: str) -> None:
    """``/resume`` opens the old session, ``/undo`` takes back one exchange, ``/retry`` asks one again."""
    texts = {"ann": ["one", "/new", "two", "/resume", "three", "/undo", "four", "/retry", "five"]}
    async with dying(tmp_path, point, {}) as daemon:
        replies = await Through({}).say(daemon, texts)

    kinds = [line.get("kind", line["role"]) for line in lines_of(tmp_path, "web_ann")]
    told = [line["content"] for line in lines_of(tmp_path, "web_ann") if line["role"] == "user"]
    pair = ["user", "assistant"]
    assert told == ["two", "one", "three", "four", "four", "five"]
    assert kinds == [*pair, *pair, *pair, "undo", *pair, "undo", *pair, *pair]
    assert replies["ann3"] == REOPENED.format("", 2)
    assert replies["ann5"] == WITHDRAWN
    assert replies["ann7"] == "echo: four"
    assert len(archives(tmp_path, "web_ann")) == 1
