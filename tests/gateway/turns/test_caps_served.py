"""Each cap through a whole gateway and a model with a price: told once, and shown with what is left."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound, Sender
from gateway.app.app import Application
from session.models.model import Warms
from session.models.spending import AGAIN_SAID
from session.transcript.key import SessionKey
from tests.gateway.http_place import Place, open_place
from tests.gateway.waits import until
from tests.support.clock import Clock
from tests.support.model_replies import Reply
from tests.support.model_server import ModelServer

# A million tokens: 0.15 USD.
COUNT = {"prompt_tokens": 10, "completion_tokens": 250_000, "total_tokens": 250_010}
DEAR = Reply(text="dear", usage=COUNT)
ADA = Sender(id="1", name="Ada")


def tables(model: ModelServer) -> dict[str, Any]:
    """A model with a price, and no work in the background but names."""
    name = {"name": "openai/gpt-4o-mini", "api_base": model.url, "max_output_tokens": 300}
    return {"model": name}


def letter(id_: str, chat: str = "ada", **fields: Any) -> Inbound:
    return Inbound(v=1, id=id_, key=f"web:{chat}", channel="web", chat_id=chat, text="hello", **fields)


async def said(place: Place, inbound: Inbound) -> str:
    """Put a letter, wait until it ended, and return how: ``reply``, ``notice`` or ``silent``."""
    services, worker = place.application.services, place.application.worker
    assert services is not None
    assert worker is not None
    assert isinstance(services.model, Warms)
    await services.model.warm()
    await place.application.intake.accept(inbound)
    await until(lambda: worker.lanes.get(inbound.key) is None)
    session = await services.store.look(SessionKey(inbound.key))
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
    async with ModelServer() as model, open_place(tmp_path, limits=limits, **tables(model)) as place:
        model.script.append(DEAR)
        ended = [await said(place, letter(f"web:{n}", **mine)) for n in range(3)]
        others = await said(place, letter("web:other", "bob", **other)) if other is not None else "reply"
        rows = await shown(place)

    assert (ended, others) == (["reply", "notice", "silent"], "reply")
    assert len(model.turns) == (2 if other is not None else 1)
    reached = [row for row in rows if row["reached"]]
    assert [(row["limit"], row["left"]) for row in reached] == [(*limits, 0)]
    assert reached[0]["until"].endswith("T00:00:00+00:00")


async def test_a_message_that_may_cost_too_much_is_not_asked(tmp_path: Path) -> None:
    """The price of its longest answer is over the cap; a model without a price is asked all the same."""
    limits = {"cost_per_day_usd": 0.0001}
    async with ModelServer() as model, open_place(tmp_path / "a", limits=limits, **tables(model)) as place:
        ended = [await said(place, letter(f"web:{n}")) for n in range(2)]
        rows = await shown(place)
    async with (
        ModelServer() as other,
        open_place(
            tmp_path / "b", limits=limits, model={"name": "openai/stub", "api_base": other.url}
        ) as place,
    ):
        unpriced = await said(place, letter("web:1"))

    assert (ended, model.seen, rows[0]["used"], rows[0]["reserved"]) == (["notice", "silent"], [], 0, 0)
    assert unpriced == "reply"


async def test_a_turn_of_many_rounds_asks_before_each(tmp_path: Path) -> None:
    """The first round is dear: its tool runs, no second request is made, and the waiting client is told."""
    limits = {"cost_per_day_usd": 0.1}
    async with ModelServer() as model, open_place(tmp_path, limits=limits, **tables(model)) as place:
        services = place.application.services
        assert services is not None
        assert isinstance(services.model, Warms)
        await services.model.warm()
        model.script.append(Reply(tool_calls=[("ls", '{"path": "."}')], usage=COUNT))
        answer = (await place.post("look around", wait=30, id="web:m1")).json()
        again = (await place.post("look around", wait=30, id="web:m1")).json()
        used = (await shown(place))[0]["used"]
        today = await services.usage_today()
        view = await services.store.look(SessionKey("web:ada"))

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
        open_place(tmp_path, limits=limits, kind=daemon, **tables(model)) as place,
    ):
        # A long answer, since the price of a long question would be that of the next one, too.
        counts = {"prompt_tokens": 10, "completion_tokens": 250_000, "total_tokens": 250_010}
        model.script.append(Reply(text="dear", usage=counts))
        ended = [await said(place, letter(f"web:{n}")) for n in range(3)]
        (before,) = await shown(place)
        clock.forward(29)
        ended.append(await said(place, letter("web:3")))
        clock.forward(1)
        ended.append(await said(place, letter("web:4")))
        (after,) = await shown(place)
        assert place.application.services is not None
        session = await place.application.services.store.look(SessionKey("web:ada"))
        told = session.journal.known("web:1")

    assert ended == ["reply", "notice", "silent", "silent", "reply"]
    assert told is not None
    assert AGAIN_SAID in (told.text or "")
    assert (before["until"], before["reached"]) == ("2027-01-02T00:00:00+00:00", True)
    assert (after["until"], after["reached"]) == ("2027-01-03T00:00:00+00:00", False)
    assert before["used"] > 0.1 > after["used"] > 0
    assert [seen.text for seen in model.turns] == ["hello", "hello"]
