"""What a provider's cache takes off the bill, and how the bill is counted, priced and shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from session.models import library
from session.models.model import Warms
from tests.gateway.http_place import Place, open_place
from tests.support.billing import Bill, ToolTurn
from tests.support.model_replies import Reply, Seen
from tests.support.model_server import ModelServer

ROUNDS = 20
# LiteLLM's map has 0 for it, or nothing.
UNPRICED = "openrouter/anthropic/claude-sonnet-4.5"
# Its cache has prices of its own, to read and to write.
PRICED = "openai/gpt-6-sol"


@asynccontextmanager
async def asked(folder: Path, server: ModelServer, name: str, **more: Any) -> AsyncIterator[Place]:
    """Open a gateway whose model has loaded what it needs; ``a.txt`` is there to be read."""
    table = {"name": name, "api_base": server.url, "api_key": "k", **more.pop("model", {})}
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "a.txt").write_text("a line of a file\n" * 60)
    async with open_place(folder, model=table, **more) as place:
        services = place.application.services
        assert services is not None
        assert isinstance(services.model, Warms)
        await services.model.warm()
        yield place


async def get(place: Place, path: str) -> Any:
    return (await place.http.get(path)).json()


async def billed(folder: Path, *, cache: bool) -> Bill:
    turn = ToolTurn(ROUNDS)
    async with ModelServer() as model, asked(folder, model, UNPRICED, model={"cache": cache}) as place:
        model.chooses = turn
        answer = (await place.post("read it all", wait=60)).json()
    assert answer["reply"] == "done", answer
    return turn.bill


async def test_a_long_tool_turn_costs_a_third(tmp_path: Path) -> None:
    """With at most four marks in a request; ``model.cache = false`` sends none."""
    marked = await billed(tmp_path / "a", cache=True)
    plain = await billed(tmp_path / "b", cache=False)

    assert len(marked.marks) == len(plain.marks) == ROUNDS
    assert all(0 < marks <= 4 for marks in marked.marks)
    assert set(plain.marks) == {0}
    assert marked.cost <= 0.35 * plain.cost


async def test_what_a_cache_held_is_counted_apart_at_its_own_price(tmp_path: Path) -> None:
    """In the ledger, the caps, ``/v1/usage``, ``/v1/status``, the trace and the log of the turn."""
    details = {"cached_tokens": 1_000, "cache_write_tokens": 400}
    usage = {"prompt_tokens": 1_500, "completion_tokens": 100, "total_tokens": 1_600}
    reply = Reply(text="hi", usage={**usage, "prompt_tokens_details": details})
    async with (
        ModelServer() as model,
        asked(tmp_path, model, PRICED, limits={"cost_per_day_usd": 5.0}) as place,
    ):
        price = library.loaded().model_cost[PRICED.partition("/")[2]]
        model.script.append(reply)
        id_ = (await place.post("hello", wait=60)).json()["id"]
        shown, status, life = [
            await get(place, path) for path in ("/v1/usage", "/v1/status", f"/v1/trace/{id_}")
        ]

    cost = 100 * price["input_cost_per_token"] + 100 * price["output_cost_per_token"]
    cost += 1_000 * price["cache_read_input_token_cost"] + 400 * price["cache_creation_input_token_cost"]
    counts = {"prompt_tokens": 1_500, "cached_tokens": 1_000, "cache_written_tokens": 400}
    [row] = [row for row in shown["models"] if row["turns"]]
    assert {name: row[name] for name in counts} == counts
    assert (row["cost_usd"], row["unpriced_tokens"]) == (pytest.approx(cost, abs=1e-6), 0)
    assert status["usage_today"]["cached_tokens"] == 1_000
    assert status["limits"][0]["used"] == pytest.approx(cost, abs=1e-6)
    [step] = [step for step in life["steps"] if step["words"] == "the model answered"]
    assert (step["cached"], step["cache_written"]) == (1_000, 400)
    assert step["cost_usd"] == pytest.approx(cost)


async def test_an_unknown_price_is_shown_as_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A price of 0 in LiteLLM's map is none, but for a model of one's own."""
    async with ModelServer() as model, asked(tmp_path, model, UNPRICED) as place:
        model.chooses = ToolTurn(2)
        id_ = (await place.post("read it", wait=60)).json()["id"]
        total = (await get(place, "/v1/usage"))["total"]
        today = (await get(place, "/v1/status"))["usage_today"]
        life = await get(place, f"/v1/trace/{id_}")
        [session] = (await get(place, "/v1/sessions"))["sessions"]
    capsys.readouterr()
    assert main(["usage", "--workspace", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert await asyncio.to_thread(main, ["trace", id_, "--workspace", str(tmp_path)]) == 0
    traced = capsys.readouterr().out

    assert [each["cost_usd"] for each in (total, today, session["metrics"])] == [None] * 3
    assert total["unpriced_tokens"] == total["prompt_tokens"] + total["completion_tokens"]
    assert [step["cost_usd"] for step in life["steps"] if "prompt" in step] == [None, None]
    assert "cost unknown" in table
    assert "USD" not in table
    assert traced.count("cost_usd unknown") == 2


async def test_a_provider_that_refuses_marks_is_asked_once_more_without(tmp_path: Path) -> None:
    """The next turns have none from the start."""

    def refuses(seen: Seen) -> Reply | None:
        if "cache_control" not in json.dumps(seen.messages):
            return None
        error = {"message": "messages.0.cache_control: Extra inputs are not permitted", "code": 400}
        return Reply(status=400, error=error)

    async with ModelServer() as model, asked(tmp_path, model, UNPRICED) as place:
        model.chooses = refuses
        replies = [(await place.post(text, wait=60)).json()["reply"] for text in ("hello", "again")]

    assert replies == ["stub: hello", "stub: again"]
    assert [seen.status for seen in model.seen] == [400, 200, 200]
