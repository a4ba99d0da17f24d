"""What every call of a model costs counts for the day, and a day whose money is spent ends the background."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.app.sessions import SessionServices
from session.models.model import Warms
from session.models.spending import COST_SAID
from tests.gateway.http_place import Place, open_place
from tests.gateway.waits import until
from tests.support.model_replies import Reply, usage_of
from tests.support.model_server import ModelServer


def tables(model: ModelServer) -> dict[str, Any]:
    """A model with a price, whose window is so small that ``/compact`` has something to take away."""
    name = {"name": "openai/gpt-4o-mini", "api_base": model.url}
    return {"model": {**name, "context_window": 4_000, "max_output_tokens": 300}}


# A quarter of a million tokens of an answer: 0.15 USD.
COUNT = {"prompt_tokens": 10, "completion_tokens": 250_000, "total_tokens": 250_010}
DEAR = Reply(text="dear", usage=COUNT)


def services_of(place: Place) -> SessionServices:
    assert place.application.services is not None
    return place.application.services


async def said(place: Place, text: str) -> str:
    """Say something; what a real model needs is imported before, since that takes its time."""
    model = services_of(place).model
    assert isinstance(model, Warms)
    await model.warm()
    answer = await place.post(text, wait=30)
    return str(answer.json()["reply"])


async def done(services: SessionServices) -> None:
    """Wait until the background has nothing to do, or has to wait itself."""

    def idle() -> bool:
        jobs = services.jobs.shown()
        return not jobs["running"] and (not jobs["waiting"] or jobs["next_at"] is not None)

    await until(idle)


def rows(workspace: Path) -> list[dict[str, Any]]:
    lines = [line for file in (workspace / "state" / "usage").glob("*.jsonl") for line in file.open()]
    return [row for row in map(json.loads, lines) if "v" not in row]


def compactions(model: ModelServer) -> int:
    return sum(seen.text.startswith("<conversation>") for seen in model.seen)


def prompt_tokens(model: ModelServer) -> int:
    """What the server counted in all it was asked."""
    return sum(usage_of(seen, Reply())["prompt_tokens"] for seen in [*model.seen, *model.asides])


@pytest.mark.slow
async def test_all_that_was_asked_counts_once_and_turns_alone_are_turns(tmp_path: Path) -> None:
    """Turns, a compaction in one, ``/compact``, a name, a summary, a consolidation; also after a restart."""
    async with ModelServer() as model:
        async with open_place(tmp_path, **tables(model)) as place:
            services = services_of(place)
            for number in range(4):
                assert (await said(place, f"fact-{number:04} {'word ' * 400}")).startswith("stub: ")
            await done(services)
            in_turns = compactions(model)
            assert "summarised" in await said(place, "/compact")
            assert "begins" in await said(place, "/new")
            await done(services)

            shown = await services.usage_today()
            totals = services.jobs.shown()

        async with open_place(tmp_path, **tables(model)) as place:
            assert await services_of(place).usage_today() == shown
        kinds = sorted(seen.aside for seen in model.asides)
        by_hand = compactions(model) - in_turns
        consolidations = sum(seen.tools == ["save_memory"] for seen in model.seen)

    assert (kinds, consolidations) == (["name", "summary"], 1)
    assert in_turns > 0
    assert by_hand > 0
    assert totals["consolidated"]["messages"] > 0
    assert (shown["turns"], shown["prompt_tokens"]) == (4, prompt_tokens(model))
    written = rows(tmp_path)
    assert sum(row.get("turn", True) for row in written) == 4
    assert len(written) == 4 + by_hand + 3
    assert all(row["cost_usd"] > 0 and row["key"] == "web:ada" for row in written)
    assert abs(shown["cost_usd"] - sum(row["cost_usd"] for row in written)) < 1e-6


async def test_vectors_for_facts_and_searches_are_their_persons(tmp_path: Path) -> None:
    """Of whoever asks, with the chat: each has a line of its own, and the cap on the person holds for all."""
    for number in range(7):
        fact = {"id": f"01KG9NB3H0Q5W4XZ2WM29XRYB{number}", "text": f"Ada keeps {number} ferrets."}
        path = tmp_path / "memory" / "people" / "ada" / "facts.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(fact) + "\n")
    search = '[[tool:memory_search {"query": "ferrets"}]]'
    async with ModelServer() as model:
        priced = tables(model)
        priced["model"] |= {"embedding": "openai/text-embedding-3-small"}
        limits = {"cost_per_person_per_day_usd": 1.0, "cost_per_chat_per_day_usd": 1.0}
        people = {"ada": ["web:ada", "web:phone"]}
        async with open_place(tmp_path, people=people, limits=limits, **priced) as place:
            services = services_of(place)
            assert await said(place, f"how many ferrets? {search}")
            await done(services)
            await services.usage_today()
            shown = services.limits_today()

    found = [row for row in rows(tmp_path) if "hold" not in row]
    vectors = [row for row in found if not row.get("turn", True) and row["person"]]
    assert len(model.embedded) == len(vectors) == 2
    assert {(row["key"], row["person"]) for row in vectors} == {("web:ada", "people/ada")}
    assert all(row["cost_usd"] > 0 for row in vectors)
    used = {row["limit"]: row["used"] for row in shown or ()}
    own = sum(row["cost_usd"] for row in found if row["person"])
    assert abs(used["cost_per_person_per_day_usd"] - own) < 1e-4
    assert used["cost_per_chat_per_day_usd"] >= own


async def test_a_day_whose_money_is_spent_ends_the_background_visibly(tmp_path: Path) -> None:
    """The turn that spends it is answered; its session gets no name today, and the next message a notice."""
    async with (
        ModelServer() as model,
        open_place(tmp_path, limits={"cost_per_day_usd": 0.1}, **tables(model)) as place,
    ):
        model.script.append(DEAR)
        services = services_of(place)
        assert await said(place, "hello") == "dear"
        await done(services)
        shown = services.jobs.shown()
        refused = (await place.post("more", wait=30)).json()

    assert (shown["waiting"], shown["reasons"]) == (1, ["cost"])
    until_text = shown["budget"]["cost_reached_until"]
    assert until_text == shown["next_at"]
    assert datetime.fromisoformat(until_text) > datetime.now(UTC)
    assert until_text.endswith("T00:00:00+00:00")
    assert shown["budget"]["calls_last_hour"] == 0
    assert (refused["kind"], refused["reply"]) == ("notice", COST_SAID)
    assert (len(model.seen), model.asides) == (1, [])


async def test_a_person_that_is_listed_has_one_count_in_all_chats(tmp_path: Path) -> None:
    async with (
        ModelServer() as model,
        open_place(
            tmp_path,
            people={"ada": ["web:ada", "web:phone"]},
            limits={"turns_per_person_per_hour": 1},
            **tables(model),
        ) as place,
    ):
        first = (await place.post("hello", chat="ada", wait=30)).json()
        second = (await place.post("hello", chat="phone", wait=30)).json()
        other = (await place.post("hello", chat="bob", wait=30)).json()

    assert [each["kind"] for each in (first, second, other)] == ["reply", "notice", "reply"]
