"""The page without a mouse: from the first Tab to an answer, and back."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.rig import Console
from tests.support.guarantee import guarantee

pytestmark = guarantee("interfaces", "The page can be used with the keyboard alone.")

FOCUSED = (
    "document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute('aria-label') || ''"
)


async def test_everything_up_to_an_answer_goes_by_keys(console: Console) -> None:
    """Skip link, filter, list, conversation, a message, a fold, details and back, each by its key."""
    page = await console.open("chats")
    # Below the chats of other tests the one that is sought may be out of view.
    await expect(page.locator(".chat-row").first).to_be_visible()
    await page.keyboard.press("Tab")
    assert await page.evaluate(FOCUSED) == "Skip to the content"
    await page.keyboard.press("Enter")
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox", name="Filter chats")).to_be_focused()
    await page.keyboard.type("operat")
    await expect(page.locator(".chat-row")).to_have_count(1)
    await page.keyboard.press("ArrowDown")
    await expect(page.locator(".chat-row a")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await page.keyboard.type("by keys alone")
    await page.keyboard.press("Enter")
    await console.sees("stub: by keys alone")
    # While a turn runs Escape stops it.
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("g")
    await page.keyboard.press("h")
    await expect(page.get_by_role("heading", name="Health")).to_be_focused()
    await page.keyboard.press("n")

    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()


async def test_the_list_is_walked_and_the_focus_is_not_lost(console: Console) -> None:
    page = await console.open("chats")
    row = page.locator(".chat-row a")
    await expect(row.first).to_be_visible()
    await row.first.focus()
    await page.keyboard.press("End")
    await expect(page.locator(".chat-row a:focus")).to_have_count(1)
    last = await page.locator(".chat-row:focus-within").get_attribute("aria-posinset")
    assert last == await page.locator(".chat-row:focus-within").get_attribute("aria-setsize")
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowUp")

    await expect(page.get_by_role("searchbox", name="Filter chats")).to_be_focused()
