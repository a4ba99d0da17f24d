"""What was said is found through a running gateway: by the model, over HTTP, and on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx

from session.store.derived import index_path
from session.transcript.key import SessionKey
from tests.support.bulk import MESSAGES, fill, is_gone, stopped_in_the_midst, taken_in
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask, command
from tests.support.model_server import ModelServer, Vectors
from tests.support.place import lines_of, with_model
from tests.support.until import until
from tests.system.test_relevance import vectors_in

KEY, OTHER = "web:a", "web:b"


async def hits(daemon: Daemon, key: str, words: str, **more: Any) -> list[dict[str, Any]]:
    """Search over HTTP."""
    async with httpx.AsyncClient(base_url=daemon.url, timeout=30, trust_env=False) as client:
        answer = await client.get("/v1/memory/search", params={"key": key, "q": words, **more})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["hits"]
    return found


async def test_the_model_finds_what_was_said_before_and_nothing_of_another_chat(tmp_path: Path) -> None:
    """An ended session is searched too; ``/undo`` and ``/clear-session`` take out what they take away."""
    call = '[[tool:memory_search {"query": "ferret", "neighbours": 1}]]'
    async with ModelServer() as model:
        config = with_model(model)
        async with Daemon(tmp_path, config=config) as daemon:
            await ask(daemon, KEY, "1", "my ferret is called Biscuit")
            await ask(daemon, KEY, "2", "/new")
            await ask(daemon, OTHER, "3", "another ferret, called Waffle")
            await ask(daemon, KEY, "4", f"what was it called? {call}")
            first = await hits(daemon, KEY, "Biscuit")
            _, listed = await command(tmp_path, "memory", "search", KEY, "biscuit", "--json", config=config)
            await ask(daemon, KEY, "5", "my parrot is called Toast")
            assert await hits(daemon, KEY, "parrot")
            await ask(daemon, KEY, "6", "/undo")
            undone = await hits(daemon, KEY, "parrot")
            index = list((tmp_path / "state/recall").rglob("*.db"))
            assert index
            for path in index:
                path.write_bytes(b"damaged" * 4096)
            again = await hits(daemon, KEY, "Biscuit")
            assert await daemon.stop() == 0
        offered = model.seen[0].tools

    (result,) = [line["content"] for line in lines_of(tmp_path, "web_a") if line["role"] == "tool"]
    assert "memory_search" in offered
    assert "> my ferret is called Biscuit" in result
    assert "Waffle" not in result
    assert "what was it called" not in result
    user = next(hit for hit in first if hit["speaker"] == "user")
    assert user.keys() == {
        *("kind", "key", "session_id", "message_id", "seq", "at", "speaker", "text", "score"),
    }
    assert (user["kind"], user["key"], user["seq"]) == ("message", KEY, 1)
    assert user["text"] == "my ferret is called Biscuit"
    assert [hit["text"] for hit in json.loads(listed)] == [hit["text"] for hit in first]
    assert undone == []
    assert {hit["text"] for hit in again} >= {hit["text"] for hit in first}


async def test_with_an_embedding_model_the_nearest_comes_first(tmp_path: Path) -> None:
    """By tool, HTTP and command line; counted, left out where it fails, cleared with its chat."""
    words, meaning = "violins strings", "what were they saying about those violins and those strings"
    question = "what were they saying about those strings, those violins"
    call = f'[[tool:memory_search {{"query": "{question}"}}]]'
    async with ModelServer() as model:
        config = with_model(model, **{"model.embedding": "openai/stub-embedding", "facts.enabled": False})
        async with Daemon(tmp_path, config=with_model(model)) as daemon:
            for number, text in enumerate((words, meaning)):
                await ask(daemon, KEY, f"m{number}", f"{text} [[say:noted]]")
            by_words = await texts_of(daemon, question)
            assert await daemon.stop() == 0
        async with Daemon(tmp_path, config=config) as daemon:
            over_http = await texts_of(daemon, question)
            await ask(daemon, KEY, "m2", f"so {call} [[say:noted]]")
            _, listed = await command(tmp_path, "memory", "search", KEY, question, "--json", config=config)
            asked = sum(map(len, model.embedded))
            status = json.loads((await command(tmp_path, "status", "--json", config=config))[1])
            lines = lines_of(tmp_path, "web_a")
            model.vectors.append(Vectors(status=503))
            failed = await texts_of(daemon, question)
            assert await daemon.stop() == 0
        requests, kept = len(model.embedded), vectors_in(tmp_path)
        _, doctor = await command(tmp_path, "doctor", "--json", config=config)
        code, _ = await command(tmp_path, "sessions", "clear", KEY, config=config)

    (result,) = [line["content"] for line in lines if line["role"] == "tool"]
    assert [by_words[0], failed[0]] == [words, words]
    assert over_http[0] == meaning
    assert json.loads(listed)[0]["text"].startswith(meaning)
    assert result.index(f"> {meaning}") < result.index(f"> {words} ")
    # Each message once, besides the questions; the failed one is not told to have cost anything.
    assert requests == 4
    told = sum(line["usage"]["prompt"] for line in lines if line["role"] == "assistant")
    assert asked >= 5
    assert ("embedding", "ok") in {(check["name"], check["level"]) for check in json.loads(doctor)}
    assert status["usage_today"]["prompt_tokens"] > told
    assert (kept > 0, code, vectors_in(tmp_path)) == (True, 0, 0)


async def texts_of(daemon: Daemon, question: str) -> list[str]:
    """What the person's hits say, without what the model was told to answer."""
    found = await hits(daemon, KEY, question)
    return [hit["text"].removesuffix(" [[say:noted]]") for hit in found if hit["speaker"] == "user"]


async def test_what_cannot_be_asked_is_refused_and_what_nobody_asked_is_taken_in(tmp_path: Path) -> None:
    """A chat that grew is in its index before anybody asks."""
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        await ask(daemon, KEY, "1", "swordfish " + "la " * 12_000)
        await until(lambda: list((tmp_path / "state/recall").rglob("*.db")))
        async with httpx.AsyncClient(base_url=daemon.url, timeout=30, trust_env=False) as client:
            answers = await asyncio.gather(
                client.get("/v1/memory/search", params={"key": KEY}),
                client.get("/v1/memory/search", params={"q": "x"}),
                client.get("/v1/memory/search", params={"key": KEY, "q": "x", "limit": "0"}),
                client.get("/v1/memory/search", params={"key": "nobody", "q": "x"}),
                client.get("/v1/memory/search", params={"key": "web:nobody", "q": "x"}),
                client.get("/v1/memory/search", params={"key": "web:../../x", "q": '"; --'}),
            )
        code, out = await command(tmp_path, "memory", "search", KEY, "x")
        assert await daemon.stop() == 0

    assert [answer.status_code for answer in answers[:4]] == [400, 400, 400, 400]
    assert [answer.json()["hits"] for answer in answers[4:]] == [[], []]
    assert (code, out) == (0, "")


@guarantee("storage", "A kill during indexing leaves an intact search index and no stray process.")
async def test_a_daemon_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    """What takes in a long conversation ends with it, and the next daemon goes on where that stood."""
    fill(tmp_path, SessionKey(KEY))
    index = index_path(tmp_path, "chats/web_a")
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        child = await stopped_in_the_midst(daemon.pid, index)
        await daemon.kill()
        before = taken_in(index)

        os.kill(child, signal.SIGCONT)
        await until(lambda: is_gone(child))
        assert before <= taken_in(index) < MESSAGES

        await daemon.start()
        await until(lambda: taken_in(index) == MESSAGES)
        assert await hits(daemon, KEY, "ferret of 19777")
        assert await daemon.stop() == 0
