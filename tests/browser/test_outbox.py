"""What was typed while the gateway takes nothing: handed in later, in the order in which it was typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.async_api import Route, expect

from tests.browser.rig import Console
from tests.support.guarantee import guarantee
from tests.support.until import until

pytestmark = guarantee(
    "order", "The page sends messages in the order in which they were typed, across errors, reloads and tabs."
)

AWAY, REFUSED = 503, 400
STORED = "(key) => JSON.parse(localStorage.getItem(`chat-gateway.outbox.${key}`)).map((one) => one.text)"


@dataclass
class Door:
    """Stands before the gateway and refuses messages with the status of their text; the rest goes through."""

    shut: dict[str, int] = field(default_factory=dict)
    tries: list[str] = field(default_factory=list)
    through: list[str] = field(default_factory=list)

    async def answer(self, route: Route) -> None:
        text = route.request.post_data_json["text"]
        self.tries.append(text)
        if text in self.shut:
            refusal = {"error": f"{text} is not taken", "hint": "wait"}
            await route.fulfill(status=self.shut[text], json=refusal)
        else:
            self.through.append(text)
            await route.continue_()

    @property
    def order(self) -> list[str]:
        """The texts that went through; a repeat is the same message."""
        return list(dict.fromkeys(self.through))


async def door(console: Console, **shut: int) -> Door:
    """Put a door before the gateway for all tabs."""
    made = Door(dict(shut))
    await console.context.route("**/v1/messages?*", made.answer)
    return made


async def test_a_message_that_is_refused_for_good_holds_up_none(console: Console) -> None:
    before = await door(console, one=AWAY)
    page = await console.open("chats/web:refused")
    await console.say("one")
    await console.say("two")
    await expect(page.locator("article.pending", has_text="not sent yet, trying again")).to_have_count(2)
    before.shut["one"] = REFUSED

    await console.sees("stub: two")
    # Its own row goes a moment after its answer is there.
    await expect(page.locator("article.pending")).to_have_count(1)
    await expect(page.locator("article.pending")).to_contain_text("one is not taken")
    await page.get_by_role("button", name="Edit again").click()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("one")
    await expect(page.locator("article.pending")).to_have_count(0)


async def test_a_try_that_hangs_holds_up_none_for_long(console: Console) -> None:
    """The line went away without a word: it is given up, and tried again under the same id."""
    tries: list[str] = []

    async def answer(route: Route) -> None:
        tries.append(route.request.post_data_json["id"])
        if len(tries) > 1:
            await route.continue_()

    await console.context.route("**/v1/messages?*", answer)
    page = await console.open("chats/web:hangs")
    await page.evaluate("window.limit = AbortSignal.timeout.bind(AbortSignal)")
    await page.evaluate("AbortSignal.timeout = () => limit(300)")
    await console.say("one")
    await console.say("two")

    await console.sees("stub: one")
    await console.sees("stub: two")
    assert tries[0] == tries[1]


async def test_a_view_that_was_left_hands_in_what_waits_and_keeps_the_order(console: Console) -> None:
    """Also what is typed once the view is opened again, and what nobody looks at any more."""
    before = await door(console, one=AWAY)
    page = await console.open("chats/web:left")
    await console.say("one")
    await expect(page.locator("article.pending")).to_contain_text("trying again")
    await console.open("chats/web:elsewhere")
    await expect(page.locator("article.pending")).to_have_count(0)
    await console.open("chats/web:left")
    await console.say("two")
    await expect(page.locator("article.pending", has_text="not sent yet, trying again")).to_have_count(2)
    await console.open("chats/web:elsewhere")
    tried = before.tries.count("one")
    await until(lambda: before.tries.count("one") > tried)
    assert before.through == []
    before.shut.clear()
    await until(lambda: before.order == ["one", "two"])

    await console.open("chats/web:left")
    await console.sees("stub: two")
    await expect(page.locator("article.pending")).to_have_count(0)


async def test_two_tabs_keep_the_order_and_each_other_s_messages(console: Console) -> None:
    """What one of them typed first goes first; who closes or reloads one of them loses nothing."""
    before = await door(console, one=AWAY)
    page = await console.open("chats/web:tabs")
    other = Console(await console.context.new_page(), console.context, console.gateway)
    await other.open("chats/web:tabs")
    await expect(other.page.locator(".empty-title", has_text="No messages yet")).to_be_visible()
    await console.say("one")
    await expect(page.locator("article.pending")).to_contain_text("trying again")
    await other.say("two")
    await until(lambda: before.tries.count("one") > 2)
    assert before.through == []
    assert await page.evaluate(STORED, "web:tabs") == ["one", "two"]
    await other.page.close()
    await page.reload()
    # A try that is lost, as one that was under way at the reload, is given up after thirty seconds.
    again = page.locator("article.pending", has_text="not sent yet, trying again")
    await expect(again).to_have_count(2, timeout=60_000)
    before.shut.clear()

    await console.sees("stub: one")
    await console.sees("stub: two")
    assert before.order == ["one", "two"]


async def test_where_the_browser_stores_nothing_a_view_opened_again_has_what_waits(console: Console) -> None:
    before = await door(console, one=AWAY)
    page = console.page
    await page.add_init_script("Storage.prototype.setItem = () => { throw new Error('it is full'); };")
    await console.open("chats/web:unstored")
    await console.say("one")
    await expect(page.locator("article.pending")).to_contain_text("trying again")
    await console.open("chats/web:elsewhere")
    await expect(page.locator("article.pending")).to_have_count(0)
    await console.open("chats/web:unstored")
    await expect(page.locator("article.pending")).to_contain_text("one")
    await console.say("two")
    before.shut.clear()

    await console.sees("stub: two")
    assert before.order == ["one", "two"]


PUT = "([key, all]) => localStorage.setItem(`chat-gateway.outbox.${key}`, JSON.stringify(all))"


def typed(text: str, *, hours: float, accepted: bool) -> dict[str, Any]:
    """A message as the page keeps it, typed so many hours ago."""
    at = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
    state = "waiting" if accepted else "sending"
    return {"id": f"web:{text}", "text": text, "files": [], "at": at, "state": state, "accepted": accepted}


async def test_what_is_so_old_that_its_id_is_forgotten_is_not_handed_in_again(console: Console) -> None:
    """It would be answered twice. What was taken is in the history, the rest is for the person to send."""
    before = await door(console)
    page = await console.open("chats")
    stored = [
        *(typed(text, hours=80, accepted=True) for text in ("answered", "/new")),
        typed("never taken", hours=80, accepted=False),
        typed("of a wrong clock", hours=-30, accepted=False),
        typed("taken late", hours=40, accepted=True),
        typed("not so old", hours=40, accepted=False),
    ]
    await page.evaluate(PUT, ["web:days", stored])
    await console.open("chats/web:days")

    await console.sees("stub: not so old")
    await console.sees("stub: taken late")
    assert set(before.tries) == {"taken late", "not so old"}
    pending = page.locator("article.pending")
    await expect(pending).to_have_count(2)
    await expect(pending.nth(0)).to_contain_text("Check whether it was answered")
    assert await page.evaluate(STORED, "web:days") == ["never taken", "of a wrong clock"]
    await pending.nth(0).get_by_role("button", name="Edit again").click()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("never taken")


async def test_a_message_that_gets_too_old_while_it_is_tried_is_tried_no_more(console: Console) -> None:
    """As in a tab that slept for days, or before a gateway that was away so long."""
    before = await door(console, one=AWAY)
    page = await console.open("chats/web:slept")
    await console.say("one")
    await until(lambda: len(before.tries) > 1)
    await page.evaluate("window.now = Date.now; Date.now = () => now() + 50 * 3600 * 1000")

    await expect(page.locator("article.pending")).to_contain_text("Check whether it was answered")
    await page.evaluate("Date.now = now")
    tried = len(before.tries)
    await console.say("two")
    await console.sees("stub: two")
    assert before.tries.count("one") == tried
