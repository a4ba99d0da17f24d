"""Each cap through a whole gateway and a model with a price: told once, and shown with what is left."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound, Sender
from gateway.app.application import Application
from gateway.app.wiring_session import SessionServices
from session.models.spending import AGAIN_SAID
from session.transcript.key import SessionKey
from tests.gateway.http_place import Place, open_place
from tests.support.clock import Clock
from tests.support.model_replies import Reply, usage_of
from tests.support.model_server import ModelServer
from tests.support.until import until
from tests.support.usage_rows import usage_in

# A million tokens: 0.15 USD.
COUNT = {"prompt_tokens": 10, "completion_tokens": 250_000, "total_tokens": 250_010}
DEAR = Reply(text="dear", usage=COUNT)
ADA = Sender(id="1", name="Ada")


def priced(model: ModelServer) -> dict[str, Any]:
    return {"name": "openai/gpt-4o-mini", "api_base": model.url, "max_output_tokens": 300}


def letter(id_: str, chat: str = "ada", **fields: Any) -> Inbound:
    return Inbound(v=1, id=id_, key=f"web:{chat}", channel="web", chat_id=chat, text="hello", **fields)


async def ended_as(place: Place, inbound: Inbound) -> str:
    """Put a letter, wait until it ended, and return how: ``reply``, ``notice`` or ``silent``."""
    worker = place.application.worker
    assert worker is not None
    await place.warm()
    await place.application.intake.accept(inbound)
    await until(lambda: worker.lanes.get(inbound.key) is None)
    session = await place.services.store.look(SessionKey(inbound.key))
    known = session.journal.known(inbound.id)
    return known.kind if known is not None else "reply"


async def shown(place: Place) -> list[dict[str, Any]]:
    return list((await place.http.get("/v1/status")).json()["limits"])


@pytest.mark.parametrize(
    ("limits", "mine", "other"),
    [
        ({"cost_per_day_usd": 0.1}, {}, None),
        ({"tokens_per_day": 100_000}, {}, None),
        ({"cost_per_chat_per_day_usd": 0.1}, {}, {}),
        ({"cost_per_person_per_day_usd": 0.1}, {"sender": ADA}, {"sender": Sender(id="2")}),
        ({"cost_per_job_per_day_usd": 0.1}, {"cron_job_id": "daily"}, {"cron_job_id": "weekly"}),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
async def test_a_cap_is_told_once_and_ends_nobody_elses_messages(
    tmp_path: Path, limits: dict[str, Any], mine: dict[str, Any], other: dict[str, Any] | None
) -> None:
    """The message that reaches it is answered; what is left is nothing, for everybody or for one."""
    async with ModelServer() as model, open_place(tmp_path, limits=limits, model=priced(model)) as place:
        model.script.append(DEAR)
        ended = [await ended_as(place, letter(f"web:{n}", **mine)) for n in range(3)]
        others = await ended_as(place, letter("web:other", "bob", **other)) if other is not None else "reply"
        rows = await shown(place)

    assert (ended, others) == (["reply", "notice", "silent"], "reply")
    assert len(model.turns) == (2 if other is not None else 1)
    reached = [row for row in rows if row["reached"]]
    assert [(row["limit"], row["left"]) for row in reached] == [(*limits, 0)]
    assert reached[0]["until"].endswith("T00:00:00+00:00")


async def test_a_turn_of_many_rounds_asks_before_each(tmp_path: Path) -> None:
    """The first round is dear: its tool runs, no second request is made, and the waiting client is told."""
    limits = {"cost_per_day_usd": 0.1}
    async with ModelServer() as model, open_place(tmp_path, limits=limits, model=priced(model)) as place:
        await place.warm()
        model.script.append(Reply(tool_calls=[("ls", '{"path": "."}')], usage=COUNT))
        answer = (await place.post("look around", wait=30, id="web:m1")).json()
        again = (await place.post("look around", wait=30, id="web:m1")).json()
        used = (await shown(place))[0]["used"]
        today = await place.services.usage_today()
        view = await place.services.store.look(SessionKey("web:ada"))

    assert answer["kind"] == "notice"
    assert answer["reply"].startswith("This answer was stopped")
    assert again["reply"] == answer["reply"]
    assert [line["role"] for line in view.lines()] == ["user", "assistant", "tool", "assistant"]
    assert (len(model.turns), round(used, 3)) == (1, 0.15)
    assert (today["turns"], today["completion_tokens"]) == (1, 250_000)


async def test_a_cap_ends_at_midnight_utc(tmp_path: Path) -> None:
    """The chat is told until when, once; then it is asked again, and the count begins anew."""
    clock = Clock(datetime(2027, 1, 1, 23, 59, 30, tzinfo=UTC))
    limits = {"cost_per_day_usd": 0.1}
    daemon = partial(Application, clock=clock)
    async with (
        ModelServer() as model,
        open_place(tmp_path, limits=limits, kind=daemon, model=priced(model)) as place,
    ):
        # A long answer, since the price of a long question would be that of the next one, too.
        model.script.append(DEAR)
        ended = [await ended_as(place, letter(f"web:{n}")) for n in range(3)]
        (before,) = await shown(place)
        clock.forward(29)
        ended.append(await ended_as(place, letter("web:3")))
        clock.forward(1)
        ended.append(await ended_as(place, letter("web:4")))
        (after,) = await shown(place)
        session = await place.services.store.look(SessionKey("web:ada"))
        told = session.journal.known("web:1")

    assert ended == ["reply", "notice", "silent", "silent", "reply"]
    assert told is not None
    assert AGAIN_SAID in (told.text or "")
    assert (before["until"], before["reached"]) == ("2027-01-02T00:00:00+00:00", True)
    assert (after["until"], after["reached"]) == ("2027-01-03T00:00:00+00:00", False)
    assert before["used"] > 0.1 > after["used"] > 0
    assert [seen.text for seen in model.turns] == ["hello", "hello"]


def tables(model: ModelServer) -> dict[str, Any]:
    """A model with a price, whose window is so small that ``/compact`` has something to take away."""
    return {"model": {**priced(model), "context_window": 4_000}}


async def said(place: Place, text: str) -> str:
    await place.warm()
    answer = await place.post(text, wait=30)
    return str(answer.json()["reply"])


async def done(services: SessionServices) -> None:
    """Wait until the background has nothing to do, or has to wait itself."""

    def idle() -> bool:
        jobs = services.jobs.shown()
        return not jobs["running"] and (not jobs["waiting"] or jobs["next_at"] is not None)

    await until(idle)


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
            services = place.services
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
            assert await place.services.usage_today() == shown
        kinds = sorted(seen.aside for seen in model.asides)
        by_hand = compactions(model) - in_turns
        consolidations = sum(seen.tools == ["save_memory"] for seen in model.seen)

    assert (kinds, consolidations) == (["name", "summary"], 1)
    assert in_turns > 0
    assert by_hand > 0
    assert totals["consolidated"]["messages"] > 0
    assert (shown["turns"], shown["prompt_tokens"]) == (4, prompt_tokens(model))
    written = await usage_in(tmp_path)
    assert sum(row["turn"] for row in written) == 4
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
            services = place.services
            assert await said(place, f"how many ferrets? {search}")
            await done(services)
            shown = await services.limits_today()

    found = await usage_in(tmp_path)
    vectors = [row for row in found if not row["turn"] and row["person"]]
    assert len(model.embedded) == len(vectors) == 2
    assert {(row["key"], row["person"]) for row in vectors} == {("web:ada", "people/ada")}
    assert all(row["cost_usd"] > 0 for row in vectors)
    used = {row["limit"]: row["used"] for row in shown or ()}
    own = sum(row["cost_usd"] for row in found if row["person"])
    assert abs(used["cost_per_person_per_day_usd"] - own) < 1e-4
    assert used["cost_per_chat_per_day_usd"] >= own
