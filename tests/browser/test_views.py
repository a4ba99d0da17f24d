"""Every view in light and dark, on a phone, a desk and a wall: it fits, and axe finds nothing."""

from __future__ import annotations

import asyncio
import json
import re
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.rig import LARGE, PHONE, Console
from tests.support.guarantee import guarantee
from tests.support.until import until

pytestmark = guarantee(
    "interfaces", "Every view of the page fits phones and wide screens and passes the accessibility checks."
)

VIEWS = (
    "chats",
    "chats/web:operations",
    "search?q=backups",
    "approvals",
    "parked",
    "schedules",
    "memory?key=web:operations&tab=notes",
    "memory?key=web:operations&tab=facts",
    "memory?key=web:operations&tab=versions",
    "people",
    "usage",
    "health",
    "config?tab=settings",
    "config?tab=doctor",
    "trace/web:m3?key=web:operations",
)
AXE = """
async (rules) => {
  const only = rules ? { runOnly: { type: "rule", values: rules } } : {};
  const found = await axe.run(document, { resultTypes: ["violations"], ...only });
  return found.violations.map((one) =>
    `${one.impact} ${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}
"""
# Measured behind two frames, in which what is drawn for its width is drawn anew.
BEYOND = """
async () => {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  const main = document.querySelector("main");
  return [document.documentElement.scrollWidth - innerWidth, main.scrollWidth - main.clientWidth];
}
"""


async def settled(page: Page) -> None:
    """Wait until a view shows what it has."""
    await expect(page.locator("main h1").first).to_be_attached()
    await expect(page.locator("main .loading")).to_have_count(0, timeout=90_000)


async def axe(page: Page, *rules: str) -> list[str]:
    """Return what axe finds that is serious or worse, by all rules or by these."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    found: list[str] = await page.evaluate(AXE, list(rules) or None)
    return [one for one in found if one.startswith(("serious", "critical"))]


async def test_each_view_is_accessible_in_light_and_dark(console: Console) -> None:
    """Axe looks at every view, and the colours follow the system and the switch."""
    page = console.page
    found: dict[str, list[str]] = {}
    for view in VIEWS:
        await console.open(view)
        await settled(page)
        await page.emulate_media(color_scheme="light")
        found[f"{view} light"] = await axe(page)
        # What else there is stands there in both.
        await page.emulate_media(color_scheme="dark")
        found[f"{view} dark"] = await axe(page, "color-contrast")

    assert {view: all_ for view, all_ in found.items() if all_} == {}


async def test_no_view_is_wider_than_its_screen(console: Console) -> None:
    page = console.page
    wide = []
    for view in VIEWS:
        await console.open(view)
        await settled(page)
        for width, height in (PHONE, (768, 1024), LARGE):
            await page.set_viewport_size({"width": width, "height": height})
            beyond, within = await page.evaluate(BEYOND)
            if beyond > 0 or within > 0:
                wide.append(f"{view} at {width}: {beyond}, {within}")

    assert wide == []


async def test_a_phone_shows_one_of_list_and_conversation_and_a_menu(console: Console) -> None:
    page = console.page
    await page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    await console.open("chats")
    # Below the chats of other tests it may be out of view.
    await page.get_by_role("searchbox", name="Filter chats").fill("operat")
    await page.locator(".chat-row", has_text="Operations").get_by_role("link").click()
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await expect(page.locator(".chat-list")).to_be_hidden()
    await expect(page.get_by_role("button", name="Details")).to_be_visible()
    assert await axe(page) == []
    await page.get_by_role("link", name="Back to chats").click()
    await expect(page.locator(".chat-list")).to_be_visible()
    await page.get_by_role("button", name="Menu").click()
    assert await axe(page) == []
    await page.get_by_role("link", name="Health").click()

    await expect(page.get_by_role("heading", name="Health")).to_be_visible()
    await expect(page.locator(".rail-list")).to_be_hidden()


async def test_the_switch_of_colours_is_kept(console: Console) -> None:
    page = await console.open("chats")
    dark = "getComputedStyle(document.body).backgroundColor"
    before = await page.evaluate(dark)
    switch = page.get_by_role("button", name="Colours:")
    await switch.click()
    await switch.click()
    await expect(switch).to_contain_text("Dark")
    await page.reload()

    assert await page.evaluate(dark) != before
    await expect(page.get_by_role("button", name="Colours: Dark")).to_be_visible()


async def test_notes_facts_and_versions_are_edited_and_put_back(console: Console) -> None:
    """Notes change and come back by their version; a fact is corrected, another forgotten."""
    page = await console.open("memory?key=web:operations&tab=notes")
    text = page.get_by_label("MEMORY.md")
    await expect(text).to_have_value(
        "# Servers\n\n- alpha and beta run Debian 12\n- backups: nightly at 02:30, kept for 30 days\n"
    )
    await text.fill("# Servers\n\n- only alpha is left\n")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".toast")).to_contain_text("Saved")
    await page.get_by_role("tab", name="Versions").click()
    await page.get_by_role("button", name="Restore MEMORY.md").first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    await expect(page.locator(".toast", has_text="Restored")).to_be_visible()
    await page.get_by_role("tab", name="Notes").click()
    await expect(page.get_by_label("MEMORY.md")).to_have_value(
        "# Servers\n\n- alpha and beta run Debian 12\n- backups: nightly at 02:30, kept for 30 days\n"
    )
    await page.get_by_role("tab", name="Facts").click()
    await page.get_by_role("button", name="Edit: Backups").click()
    await page.get_by_role("dialog").get_by_label("Fact").fill("Backups run at 03:00")
    await page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await expect(page.locator(".row-card", has_text="Backups run at 03:00")).to_be_visible()
    await page.get_by_role("button", name="Forget: Ada prefers").click()
    await page.get_by_role("dialog").get_by_role("button", name="Forget").click()

    await expect(page.locator(".row-card", has_text="Ada prefers")).to_have_count(0)


async def test_each_agent_has_a_memory_of_its_own(console: Console) -> None:
    """Another agent's notes are written and shown apart, and a link leads to them."""
    page = await console.open("memory?key=web:grandma&tab=notes")
    agent = page.get_by_label("Agent")
    await expect(agent.locator("option")).to_have_text(["default (answers here)", "coder (no memory yet)"])
    await agent.select_option("coder")
    await expect(page).to_have_url(re.compile("agent=coder"))
    await page.get_by_label("MEMORY.md").fill("only the coder knows\n")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".toast")).to_contain_text("Saved")
    await page.reload()
    await expect(page.get_by_label("MEMORY.md")).to_have_value("only the coder knows\n")
    await page.get_by_label("Agent").select_option("default")
    await expect(page.get_by_label("MEMORY.md")).to_have_value("")

    notes = console.gateway.workspace / "agents/coder/memory/chats/web_grandma/MEMORY.md"
    assert notes.read_text() == "only the coder knows\n"


async def test_a_long_listing_comes_page_by_page(console: Console) -> None:
    """Facts beyond the first page come with a press, each once, and the focus goes on with them."""
    folder = console.gateway.workspace / "memory/chats/web_many"
    folder.mkdir(parents=True)
    (folder / "facts.jsonl").write_text("".join(planted_fact(number) for number in range(230)))
    page = await console.open("memory?key=web:many&tab=facts")
    cards, more = page.locator(".row-card"), page.get_by_role("button", name="Show more")
    await expect(cards).to_have_count(100)
    await more.click()
    await expect(cards).to_have_count(200)
    assert await page.evaluate("document.activeElement.closest('.row-card') !== null")
    await more.click()
    await expect(cards).to_have_count(230)

    await expect(more).to_have_count(0)
    texts = await cards.locator(".words").all_inner_texts()
    assert texts == [f"fact {number}" for number in range(230)]


def planted_fact(number: int) -> str:
    fact = {"id": f"01KG9NB3H0Q5W4XZ2WM29X{number:04}", "text": f"fact {number}", "category": "home"}
    at = {"confidence": 1.0, "created_at": "2026-01-01T00:00:00+00:00", "replaced_by": None}
    return json.dumps({**fact, **at, "key": "web:many", "message_id": None}) + "\n"


CHAT = {"id": "01JGFJJZ00000000000000000A", "name": None, "agent": "default", "active": True, "sessions": 1}
CHAT |= {"source": "interactive", "last_role": "user", "last_text": "hello", "message_count": 2}
CHAT |= {"created_at": "2026-01-01T00:00:00"}


async def test_of_many_chats_the_newest_are_offered(console: Console) -> None:
    """A chat that began after the page was opened stands behind all others in what the gateway tells."""
    days = [
        *(f"2026-01-01T{number // 60:02}:{number % 60:02}:00" for number in range(600)),
        "2026-01-02T00:00:00",
    ]
    chats = [{**CHAT, "key": f"web:many-{at}", "last_message_at": f"{at}+00:00"} for at in days]

    async def told(route: Route) -> None:
        found = {"chats": chats, "lanes": [], "count": len(chats), "now": "2026-01-03T00:00:00+00:00"}
        await route.fulfill(json=found)

    page = console.page
    await page.route(re.compile(r"/v1/chats(\?|$)"), told)
    newest = f"web:many-{days[-1]}"
    await console.open("search")
    offered = page.get_by_label("Where").locator("option")
    await expect(offered).to_have_count(501)
    assert await offered.nth(1).get_attribute("value") == newest
    await console.open("memory")
    await expect(page.get_by_label("Chat", exact=True)).to_have_value(newest)
    await console.open("schedules")
    await page.get_by_role("button", name="Add a schedule").first.click()
    to = page.get_by_label("Send answers to")
    await to.select_option(newest)
    await expect(to.locator("option")).to_have_count(501)


async def test_many_chats_come_in_pages(console: Console) -> None:
    """The newest are shown first, the others come behind them: no answer holds them all."""
    at = [f"2026-01-01T{number // 60:02}:{number % 60:02}:00+00:00" for number in range(1400)]
    chats = [{**CHAT, "key": f"web:many-{n}", "last_message_at": at[n]} for n in reversed(range(1400))]
    asked: list[dict[str, list[str]]] = []
    held = asyncio.Event()

    async def told(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        asked.append(query)
        if len(asked) == 2:
            await held.wait()
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + int(query["limit"][0]) if "limit" in query else len(chats)
        page = [] if "since" in query else chats[begin:end]
        following = str(end) if end < len(chats) else None
        found = {"chats": page, "next": following, "lanes": [], "count": len(chats), "now": 1}
        await route.fulfill(json=found)

    page = console.page
    await page.route(re.compile(r"/v1/chats(\?|$)"), told)
    await console.open("chats")
    await expect(page.locator(".chat-row").first).to_contain_text("many-1399")
    await page.get_by_role("searchbox", name="Filter chats").fill("many-7")
    await expect(page.locator(".chat-row")).to_have_count(0)
    held.set()
    await expect(page.locator(".count")).to_contain_text("111")

    assert all("limit" in query or "since" in query for query in asked)


async def test_a_schedule_is_made_switched_run_and_removed(console: Console) -> None:
    page = await console.open("schedules")
    await page.get_by_role("button", name="Add a schedule").first.click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Every", exact=True).fill("soon")
    await form.get_by_label("Message").fill("Any news?")
    await form.get_by_role("button", name="Add a schedule").click()
    await expect(form.get_by_role("alert")).not_to_be_empty()
    await form.get_by_label("When").select_option("cron")
    await expect(form.locator("[role=alert]")).to_be_empty()
    await form.get_by_label("When").select_option("every")
    await form.get_by_label("Every", exact=True).fill("2h")
    await form.get_by_role("button", name="Add a schedule").click()
    card = page.locator(".row-card", has_text="Any news?")
    await expect(card.locator(".badge", has_text="every")).to_have_text("every 2 h")
    await card.get_by_role("button", name="Turn off").click()
    await expect(card).to_contain_text("off")
    await card.get_by_role("button", name="Run now").click()
    await card.locator("summary").click()
    await expect(card.locator(".fold")).to_contain_text("Past")
    await card.get_by_role("button", name="Remove").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()

    await expect(card).to_have_count(0)


async def test_a_schedule_has_the_zone_that_its_form_shows(console: Console, browser: Browser) -> None:
    """That of the browser, which is not the gateway's; where it is taken out, the gateway chooses."""
    context = await browser.new_context(timezone_id="Asia/Tokyo")
    far = Console(await context.new_page(), context, console.gateway)
    page = await far.open("schedules")
    form = page.get_by_role("dialog")
    for name, zone in (("shown", "Asia/Tokyo"), ("taken out", "")):
        await page.get_by_role("button", name="Add a schedule").first.click()
        await form.get_by_label("When").select_option("cron")
        await expect(form.get_by_label("Time zone")).to_have_value("Asia/Tokyo")
        if not zone:
            await form.get_by_label("Time zone").clear()
        await form.get_by_label("By cron").fill("0 9 * * *")
        await form.get_by_label("Message").fill("Good morning")
        await form.get_by_label("Name").fill(name)
        await form.get_by_role("button", name="Add a schedule").click()
        await expect(form).to_have_count(0)
        card = page.locator(".row-card", has_text=name)
        await expect(card).to_be_visible()
        assert ("Asia/Tokyo" in await card.inner_text()) is bool(zone)
        await card.get_by_role("button", name="Remove").click()
        await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        await expect(card).to_have_count(0)
    await context.close()


async def test_parked_messages_are_looked_at_dropped_and_tried_again(console: Console) -> None:
    """What is too long to be answered is set aside with its reason; tried again, it comes back.

    Of all that are tried again at once one was dropped by somebody else and one is refused, which is told.
    """
    async with httpx.AsyncClient(base_url=console.gateway.url, timeout=30) as http:

        async def parked() -> list[str]:
            return [row["id"] for row in (await http.get("/v1/parked")).json()["parked"]]

        async def are_there(*ids: str) -> bool:
            return set(ids) <= set(await parked())

        for number in range(5):
            body = {"chat_id": "parks", "text": "x" * (2**20 + 10), "id": f"big{number}"}
            await http.post("/v1/messages", json=body)
        await until(lambda: are_there(*(f"web:big{number}" for number in range(5))), 60)
        page = await console.open("parked")
        card, dialog = page.locator(".row-card", has_text="web:parks"), page.get_by_role("dialog")
        await expect(card).to_have_count(5)
        assert await axe(page) == []
        first = page.locator(".row-card[aria-label='web:big0']")
        await first.get_by_role("button", name="Show").click()
        await expect(dialog.locator("pre")).to_contain_text('"chat_id"')
        await page.keyboard.press("Escape")
        await first.get_by_role("button", name="Drop").click()
        await dialog.get_by_role("button", name="Drop").click()
        await expect(first).to_have_count(0)
        await page.locator(".row-card[aria-label='web:big1']").get_by_role("button", name="Retry").click()
        await expect(page.locator(".toast", has_text="Queued again")).to_be_visible()
        # It is over the limit still, and so comes back.
        await until(lambda: are_there("web:big1"), 60)

        await page.reload()
        count = len(await parked())
        await expect(page.locator(".row-card")).to_have_count(count)
        await page.get_by_role("button", name="Retry all").click()
        again = dialog.get_by_role("button", name="Retry all")
        await expect(again).to_be_visible()
        await http.delete("/v1/parked/web:big2", params={"key": "web:parks"})

        async def away(route: Route) -> None:
            await route.fulfill(status=503, json={"error": "the queue is away", "hint": "wait"})

        await page.route("**/v1/parked/web%3Abig3/retry*", away)
        await again.click()

        text = f"{count - 2} messages were queued again, 1 could not be"
        await expect(page.locator(".toast.error")).to_contain_text(text)
        await expect(page.locator(".row-card[aria-label='web:big2']")).to_have_count(0)
        await until(lambda: are_there("web:big1", "web:big3", "web:big4"), 60)
        for number in (1, 3, 4):
            await http.delete(f"/v1/parked/web:big{number}", params={"key": "web:parks"})


async def test_a_stranger_is_let_in_with_one_press(console: Console) -> None:
    """Who waits with a code is let in, and put out again."""
    from channels.pairing import Pairing

    pairing = Pairing(console.gateway.workspace / "state")
    pairing.ask("telegram", "4711", kind="person", name="Ada <b>L</b>", message_id="telegram:1:1")
    page = await console.open("people")
    card = page.locator(".row-card", has_text="Ada <b>L</b>")
    await card.get_by_role("button", name="Approve Ada").click()
    await expect(card.get_by_role("button", name="Revoke the access")).to_be_visible()
    assert [row["state"] for row in pairing.rows()] == ["approved"]
    await card.get_by_role("button", name="Revoke the access").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()

    await expect(card).to_have_count(0)


async def test_the_configuration_hides_its_secrets_and_the_doctor_speaks(console: Console) -> None:
    page = await console.open("config?tab=settings")
    await page.get_by_label("Filter").fill("openai/stub")
    await expect(page.locator(".card", has_text="[model]")).to_contain_text("openai/stub")
    await page.get_by_role("tab", name="Doctor").click()

    await expect(page.locator(".check").first).to_be_visible(timeout=90_000)
    assert json.dumps(await page.locator("main").inner_text()).count("fine") == 1


@pytest.mark.parametrize("view", ["nowhere", "chats/telegram:nobody", "trace/nothing"])
async def test_what_is_not_there_is_said(console: Console, view: str) -> None:
    page = await console.open(view)

    await expect(page.locator("main .empty, main .failed").first).to_be_visible()
