"""The figures that the page shows are those that were planted: lanes, parked letters, tokens, cost, steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from session.models.model import Usage
from tests.browser.rig import Console, Gateway
from tests.browser.seeds import NOW
from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.until import until
from tests.support.usage_rows import spent, usage_row

# By how many days ago: (chat, person, model, tokens in, tokens out, dollars, tokens without a price).
SPENT = {
    3: [
        ("telegram:1", "ada", "anthropic/large", 1_500, 500, 0.25, 0),
        ("telegram:1", "ada", "anthropic/large", 2_500, 500, 0.75, 0),
    ],
    1: [
        ("discord:2", "", "openai/small", 40_000, 9_000, 1.5, 0),
        ("web:3", "", "openrouter/odd", 30, 10, 0.0, 40),
    ],
}
LIMITS = {"limits.tokens_per_day": 100_000, "limits.cost_per_day_usd": 2.0}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    workspace = tmp_path_factory.mktemp("figures")
    rows = [
        usage_row(
            (NOW - timedelta(days=ago)).replace(hour=12),
            *(key, person),
            Usage(*tokens, cost, unpriced=unpriced),
            model=model,
        )
        for ago, of_day in SPENT.items()
        for key, person, model, *tokens, cost, unpriced in of_day
    ]
    await spent(workspace, rows)
    async with ModelServer() as model, Daemon(workspace, config=with_model(model, **LIMITS)) as daemon:
        yield Gateway(daemon, model, workspace)


def tile(page: Page, what: str) -> Locator:
    found = page.locator(".tile", has=page.get_by_text(what, exact=True))
    return found.locator(".value")


async def cells(table: Locator) -> list[list[str]]:
    return [await row.locator("th, td").all_inner_texts() for row in await table.locator("tbody tr").all()]


async def test_what_was_spent(console: Console) -> None:
    """Sums, each day, model, chat and person, and what is left of the budgets; a far cap flattens nothing."""
    page = await console.open("usage")
    await expect(tile(page, "Turns")).to_have_text("4")
    shown = {
        what: await tile(page, what).inner_text()
        for what in ("Background calls (titles, summaries, memory)", "Tokens in", "Tokens out", "Cost")
    }
    by_day = await cells(page.locator("table.sr").nth(1))
    ranked = {
        name: await cells(page.locator(".card", has=page.get_by_role("heading", name=name)).locator("table"))
        for name in ("By model", "By chat", "By person")
    }
    budgets = await page.locator(".card", has_text="Today's budgets").inner_text()
    columns = page.locator("figure", has_text="Tokens by day").locator("rect.column")
    tallest = max([await each.evaluate("(one) => one.getBBox().height") for each in await columns.all()])
    await page.get_by_role("button", name="7 days").click()
    await expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
    await expect(tile(page, "Turns")).to_have_text("4")

    assert shown == {
        "Background calls (titles, summaries, memory)": "0",
        "Tokens in": "44k",
        "Tokens out": "10k",
        "Cost": "≥ $2.50",
    }
    assert [row[1] for row in by_day] == ["$1.00", "≥ $1.50"]
    assert ranked == {
        "By model": [
            ["openai/small", "1", "49k", "$1.50"],
            ["anthropic/large", "2", "5,000", "$1.00"],
            ["openrouter/odd", "1", "40", "unknown"],
        ],
        "By chat": [
            ["discord:2", "1", "49k", "$1.50"],
            ["telegram:1", "2", "5,000", "$1.00"],
            ["web:3", "1", "40", "unknown"],
        ],
        "By person": [["ada", "2", "5,000", "$1.00"]],
    }
    assert "100,000 left of 100,000" in budgets
    assert "$2.00 left of $2.00" in budgets
    assert tallest > 60


async def test_how_it_stands_and_what_became_of_a_message(console: Console) -> None:
    """One turn runs, two messages wait, three are parked: in the health, the list, the rail and the trace."""
    gateway = console.gateway
    release = asyncio.Event()
    gateway.model.script.append(Reply("at last", held=release))
    too_long = "x" * (2**20 + 10)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        for number in range(3):
            body = {"chat_id": "parks", "text": too_long, "id": f"big{number}"}
            await http.post("/v1/messages", json=body)

        async def parked() -> bool:
            return (await http.get("/v1/parked")).json()["count"] == 3

        await until(parked, 60)
    asking = []
    for number in range(3):
        asking.append(
            asyncio.create_task(ask(gateway.daemon, "web:busy", f"m{number}", f"question {number}"))
        )
        await until(lambda seen=number: _in_line(gateway, seen))
    page = await console.open("health")
    await expect(tile(page, "turns running")).to_have_text("1")
    await expect(tile(page, "parked")).to_have_text("3")
    await expect(tile(page, "state")).to_have_text("ready")
    lane = page.get_by_role("region", name="Lanes").locator("tbody tr")
    await expect(lane).to_have_count(1)
    await expect(lane.locator("td").first).to_have_text("web:busy")
    await expect(lane.locator("td").last).to_have_text("2")
    queues = {row[0]: row[1] for row in await cells(page.get_by_role("region", name="Queues"))}
    await expect(page.locator("#rail [data-view=parked] .rail-count")).to_contain_text("3")
    await console.open("chats")
    row = page.locator(".chat-row", has_text="web")
    await expect(row.first).to_contain_text("+2 waiting")
    await console.open("trace/web:m0?key=web:busy")
    await expect(page.locator(".card .badge").first).to_have_text("running")
    release.set()
    await asyncio.gather(*asking)
    await page.reload()
    await expect(page.locator(".card .badge").first).to_have_text("answered")
    steps = await page.locator(".step strong").all_inner_texts()
    model = page.locator(".step", has=page.locator("strong", has_text="model"))
    spent = next(seen for seen in gateway.model.turns if seen.text.startswith("question 0"))

    assert queues["parked"] == "3"
    assert steps == ["accepted", "queued", "begun", "model", "stored"]
    assert spent is not None
    await expect(model).to_contain_text("prompt ")
    await console.open("health")
    await expect(page.get_by_text("No messages are waiting")).to_be_visible()


async def _in_line(gateway: Gateway, behind: int) -> bool:
    async with httpx.AsyncClient(timeout=30) as http:
        lanes = (await http.get(f"{gateway.url}/v1/lanes")).json()["lanes"]
    return [(lane["id"], lane["waiting"]) for lane in lanes] == [("web:m0", behind)]
