"""Files that go along with a message: chosen, pasted, dropped, taken out, kept over a reload, and sent."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

from playwright.async_api import Page, Route, expect

from tests.browser.rig import Console
from tests.support.until import until

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGOw8D+NFTEMLQkAsuJTwWSLAf0AAAAASUVORK5CYII="
)
# A browser lets no program drag a file in; a page sees the same events with the same files.
GIVE = """
([kind, target, name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name, { type: "text/plain" }));
  const element = document.querySelector(target);
  const give = (type) => element.dispatchEvent(kind === "drop"
    ? new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true })
    : new ClipboardEvent(type, { clipboardData: files, bubbles: true, cancelable: true }));
  if (kind === "drop") give("dragenter");
  return kind === "drop" ? document.querySelector(".dropping") !== null && give("drop") : give("paste");
}
"""


def chip(page: Page, name: str) -> Any:
    return page.locator(".enclosed .chip", has_text=name)


def waiting(workspace: Path) -> int:
    return len(list((workspace / "media").glob(".ahead-*")))


async def test_files_go_along_with_a_message(console: Console) -> None:
    """A picture, a pasted and a dropped file arrive with the words, are shown with them, and are asked."""
    page = await console.open("chats/web:files")
    box = page.get_by_role("textbox", name="Message")
    picture: Any = {"name": "red.png", "mimeType": "image/png", "buffer": PNG}
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Attach files").click()
    await (await chooser.value).set_files([picture, {**picture, "name": "gone.png", "buffer": PNG + b"2"}])
    await page.evaluate(GIVE, ["paste", ".composer textarea", "pasted.txt", "from the clipboard"])
    await page.evaluate(GIVE, ["drop", ".talk", "dropped.txt", "from the desk"])
    for name in ("red.png", "gone.png", "pasted.txt", "dropped.txt"):
        await expect(chip(page, name)).not_to_contain_text("uploading")
    await expect(page.locator(".dropping")).to_have_count(0)
    await chip(page, "gone.png").get_by_role("button", name="Remove gone.png").click()
    await box.fill("look at these")
    await page.reload()
    await expect(page.locator(".enclosed .chip")).to_have_count(3)
    assert waiting(console.gateway.workspace) == 3
    await box.press("Enter")
    await console.sees("stub: look at these")

    mine = console.entry("look at these").first
    await expect(mine.locator(".file-name")).to_have_text(["red.png", "pasted.txt", "dropped.txt"])
    await expect(mine.locator("img")).to_be_visible()

    async def is_drawn() -> bool:
        # The row is made anew once the message is stored.
        return bool(await mine.locator("img").evaluate("(one) => one.complete && one.naturalWidth === 8"))

    await until(is_drawn)
    await expect(page.locator(".enclosed .chip")).to_have_count(0)
    assert waiting(console.gateway.workspace) == 0
    asked = next(str(seen.messages) for seen in console.gateway.model.turns if "look at these" in seen.text)
    assert "data:image/png" in asked
    assert "from the desk" in asked or "dropped.txt" in asked


async def test_what_cannot_go_along_is_told(console: Console) -> None:
    """Too large or empty: told with the limit, and nothing is sent of it."""
    page = await console.open("chats/web:refused")
    files = page.locator(".composer input[type=file]")
    large: Any = {"name": "film.mkv", "mimeType": "video/x-matroska", "buffer": b"x" * (2**20 + 1)}
    await files.set_input_files(large)
    await expect(page.locator(".toast")).to_contain_text("film.mkv is too large: the limit is 1")
    await files.set_input_files({**large, "name": "nothing.txt", "buffer": b""})
    await expect(page.locator(".toast", has_text="nothing.txt is empty")).to_be_visible()

    await expect(page.locator(".enclosed .chip")).to_have_count(0)
    assert waiting(console.gateway.workspace) == 0


async def test_a_file_without_a_word_is_a_message(console: Console) -> None:
    page = await console.open("chats/web:wordless")
    await page.locator(".composer input[type=file]").set_input_files(
        {"name": "alone.txt", "mimeType": "text/plain", "buffer": b"alone"}
    )
    await expect(chip(page, "alone.txt")).to_contain_text("5 B")
    await page.get_by_role("button", name="Send").click()

    await expect(page.locator("article.mine .file-name")).to_have_text("alone.txt")
    await expect(page.locator("article.assistant")).to_have_count(1)


async def test_a_file_that_is_on_its_way_is_of_the_message_it_was_chosen_for(console: Console) -> None:
    """Also where the chat is left meanwhile: it is there for who comes back, never with a later message."""
    page = await console.open("chats/web:left-file")
    goes_on = asyncio.Event()

    async def slow(route: Route) -> None:
        await goes_on.wait()
        await route.continue_()

    await page.route("**/v1/media?*", slow)
    await page.locator(".composer input[type=file]").set_input_files(
        {"name": "report.txt", "mimeType": "text/plain", "buffer": b"report"}
    )
    await expect(chip(page, "report.txt")).to_contain_text("uploading")
    await console.open("chats/web:another")
    await expect(page.locator(".enclosed .chip")).to_have_count(0)
    await console.open("chats/web:left-file")
    await expect(chip(page, "report.txt")).to_contain_text("uploading")
    await console.say("here it is")
    await expect(page.locator(".toast")).to_be_visible()
    goes_on.set()
    await expect(chip(page, "report.txt")).to_contain_text("6 B")
    await page.get_by_role("textbox", name="Message").press("Enter")
    await console.sees("stub: here it is")

    await expect(console.entry("here it is").first.locator(".file-name")).to_have_text("report.txt")
    await console.open("chats/web:another")
    await expect(page.locator("article.entry")).to_have_count(0)
    await console.open("chats/web:left-file")
    await console.sees("stub: here it is")
    await expect(page.locator(".enclosed .chip")).to_have_count(0)
