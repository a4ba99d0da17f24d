"""A conversation in the page, over a real daemon: sent, streamed, stopped, approved, ended."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import httpx
from playwright.async_api import Locator, Page, Route, expect

from tests.browser.rig import Console
from tests.browser.seeds import NOW, exchange, long_chat, write_session
from tests.support.guarantee import guarantee
from tests.support.harness import ask
from tests.support.model_server import Reply
from tests.support.until import until

pytestmark = guarantee(
    "interfaces", "A draft in the page survives a reload, is sent once, and its answer is shown to the end."
)

TABLE = "**bold** and `code`\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```sh\nls -l\n```"


async def test_an_answer_is_written_as_it_comes_and_stays_after_a_reload(console: Console) -> None:
    """A message, the first half of its answer while the model still writes, the whole, and the same anew."""
    half = asyncio.Event()
    console.gateway.model.script.append(Reply(text="the first words and then the last words", half=half))
    page = await console.open("chats/web:stream")
    await console.say("tell me")

    await expect(page.locator("article.draft")).to_contain_text("the first", timeout=20_000)
    assert "last words" not in await page.locator("article.draft").inner_text()
    half.set()
    await console.sees("the first words and then the last words")
    await expect(page.locator("article.draft")).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await page.reload()
    await console.sees("the first words and then the last words")
    assert await console.entry("tell me").count() == 1


async def test_markdown_is_rendered_and_code_is_copied(console: Console) -> None:
    console.gateway.model.script.append(Reply(text=TABLE))
    await console.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await console.open("chats/web:markdown")
    await console.say("show me")

    answer = await console.sees("bold and code")
    assert await answer.locator("strong").inner_text() == "bold"
    assert await answer.locator("td").all_inner_texts() == ["1", "2"]
    await answer.locator(".code").get_by_role("button", name="Copy").click()
    await until(lambda: page.evaluate("navigator.clipboard.readText()"))
    assert await page.evaluate("navigator.clipboard.readText()") == "ls -l"


async def test_a_tool_call_is_folded_and_opens_to_its_result(console: Console) -> None:
    console.gateway.model.script.append(Reply(text="I look.", tool_calls=[("ls", '{"path": "."}')]))
    console.gateway.model.script.append(Reply(text="It is empty."))
    page = await console.open("chats/web:tools")
    await console.say("what is there?")

    await console.sees("It is empty.")
    # The answer can be read while it is written; the call stands above it once it is stored.
    fold = page.locator("details.call")
    await expect(fold).to_have_count(1)
    assert await fold.locator("pre").count() == 0
    await fold.locator("summary").click()
    assert json.loads(await fold.locator("pre").first.inner_text()) == {"path": "."}
    await expect(fold.locator("pre")).to_have_count(2)


async def test_an_approval_is_given_by_its_button_and_another_denied(console: Console) -> None:
    """The card shows what would run; the word about it ends the wait, and the file is there or is not."""
    model = console.gateway.model
    page = await console.open("chats/web:asks")
    for path, name, answer in (
        ("yes.txt", "Allow write", "written"),
        ("no.txt", "Deny write", "not written"),
    ):
        model.script.append(Reply(tool_calls=[("write", json.dumps({"path": path, "content": "milk"}))]))
        model.script.append(Reply(text=answer))
        await console.say(f"write {path}")
        card = page.locator(".conversation .approval")
        await expect(card).to_contain_text(path)
        await expect(page.locator("#rail .rail-count").locator("visible=true").last).to_be_visible()
        await card.get_by_role("button", name=name).click()
        await expect(card).to_have_count(0)
        await console.sees(answer)

    files = console.gateway.workspace / "files"
    assert [path.name for path in files.rglob("*.txt")] == ["yes.txt"]


async def test_a_command_is_answered_beside_the_transcript(console: Console) -> None:
    """It is no message of the conversation; it stays in this browser, and / offers what there is."""
    page = await console.open("chats/web:commands")
    box = page.get_by_role("textbox", name="Message")
    await box.fill("/sta")
    await page.get_by_role("group", name="Commands").get_by_role("button", name="/status").click()
    await box.press("Enter")

    await console.sees("model: openai/stub")
    await page.reload()
    await console.sees("model: openai/stub")


async def test_a_draft_is_kept_over_a_reload_each_in_its_chat(console: Console) -> None:
    page = await console.open("chats/web:draft-one")
    await page.get_by_role("textbox", name="Message").fill("not sent yet\nsecond line")
    await page.reload()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("not sent yet\nsecond line")
    await console.open("chats/web:draft-two")

    await expect(page.get_by_role("textbox", name="Message")).to_have_value("")


async def test_a_conversation_is_named_ended_read_and_opened_again(console: Console) -> None:
    """Name and instructions change; it ends, another begins behind a boundary, and the old one comes back."""
    page = await console.open("chats/web:life")
    await console.say("the first of all")
    await console.sees("stub: the first of all")
    await page.get_by_role("button", name="Details").click()
    await page.get_by_label("Name", exact=True).fill("A life")
    await page.get_by_label("Instructions").fill("Answer in rhymes.")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".chat-row.current")).to_contain_text("A life")
    await page.get_by_role("button", name="End the conversation").click()
    await page.get_by_role("dialog", name="End the conversation").get_by_role("button", name="End").click()
    await expect(page.locator(".line-row.boundary.end")).to_contain_text("A life has ended")
    await console.say("and the second")
    await console.sees("stub: and the second")
    await expect(page.locator(".line-row.boundary", has_text="new conversation")).to_have_count(1)
    await expect(console.entry("and the second")).to_have_count(2)
    await page.locator(".line-row.boundary.end").get_by_role("button", name="Reopen").click()

    await expect(page.locator(".line-row.boundary.end")).to_have_count(1)
    await console.say("back again")
    await console.sees("stub: back again")
    rhymes = [seen for seen in console.gateway.model.turns if seen.text.startswith("back again")]
    assert "Answer in rhymes." in str(rhymes[0].messages)


async def test_all_sessions_of_a_chat_are_listed(console: Console) -> None:
    """One more than the largest page of the listing has."""
    for number in range(1001):
        at = NOW - timedelta(minutes=number + 1)
        write_session(console.gateway.workspace, "web:often", [], begun=at, ended=at)
    page = await console.open("chats/web:often")
    await console.say("and here")
    await console.sees("stub: and here")
    await page.get_by_role("button", name="Details").click()
    await expect(page.get_by_role("heading", name="Details")).to_be_visible()
    links = page.locator(".session-list a")
    await expect(links).to_have_count(1002)

    found = await links.evaluate_all("(all) => all.map((one) => one.getAttribute('href'))")
    assert len(set(found)) == 1002


async def test_another_program_s_messages_come_into_the_open_chat(console: Console) -> None:
    """What somebody says elsewhere in the chat shows here without a word from this page."""
    page = await console.open("chats/web:shared")
    await expect(page.locator(".empty-title", has_text="No messages yet")).to_be_visible()
    await ask(console.gateway.daemon, "web:shared", "web:elsewhere", "from my phone")

    await console.sees("from my phone")
    await console.sees("stub: from my phone")
    await expect(page.locator(".chat-row", has_text="stub: from my phone")).to_be_visible()


async def test_what_ended_while_the_page_was_closed_is_shown(console: Console) -> None:
    """A command that was answered meanwhile does not wait for ever, and is not asked again."""
    await ask(console.gateway.daemon, "web:missed", "web:cmd1", "/status")
    await console.open("chats")
    told = {"id": "web:cmd1", "text": "/status", "at": NOW.isoformat()}
    waiting = told | {"state": "waiting", "accepted": True}
    await console.page.evaluate(
        "(one) => localStorage.setItem('chat-gateway.outbox.web:missed', JSON.stringify([one]))", waiting
    )
    page = await console.open("chats/web:missed")

    await console.sees("model: openai/stub")
    await expect(page.locator("article.pending")).to_have_count(0)
    assert await console.entry("/status").count() == 1


async def test_a_refused_message_goes_back_into_the_send_box(console: Console) -> None:
    page = await console.open("chats/sub:nobody")
    await console.say("hello?")
    await page.get_by_role("button", name="Edit again").click()

    await expect(page.get_by_role("textbox", name="Message")).to_have_value("hello?")
    await expect(page.locator("article.pending")).to_have_count(0)


async def test_a_long_conversation_is_read_up_to_its_beginning(console: Console) -> None:
    """Older messages come as they are wanted, what is read stays in its place, and few elements are there."""
    long_chat(console.gateway.workspace, "web:long", 900)
    page = await console.open("chats/web:long")
    await console.sees("Answer 449.")
    talk = page.locator(".talk")

    async def at_the_beginning() -> bool:
        await talk.evaluate("(one) => (one.scrollTop = 0)")
        return await page.locator(".line-row.boundary", has_text="The chat started").count() == 1

    await until(at_the_beginning)
    await expect(console.entry("Question 0").first).to_be_visible()
    assert await page.locator(".window-row").count() < 150
    await talk.evaluate("(one) => (one.scrollTop = 20000)")
    await expect(page.get_by_role("button", name="Go to the newest message")).to_be_visible()
    await page.get_by_role("button", name="Go to the newest message").click()

    await expect(console.entry("Answer 449.")).to_be_in_viewport()


async def test_search_leads_to_the_very_message(console: Console) -> None:
    """A hit opens its chat at the message, also in a conversation that has ended."""
    page = await console.open("search?q=backups of both hosts")
    await page.locator(".hit", has_text="Set up the backups").first.click()

    await expect(page.locator("article.entry.pointed")).to_contain_text("Set up the backups of both hosts")
    await expect(page.locator(".ended-bar")).to_contain_text("has ended")


async def test_a_tab_behind_listens_to_nothing_and_misses_nothing(console: Console) -> None:
    """What was said while another tab was looked at stands there when this one is again."""
    page = await console.open("chats/web:behind")
    await console.say("before")
    await expect(page.locator("#announcer")).to_have_text("Answer: stub: before")
    shown = (
        "(how) => { Object.defineProperty(document, 'visibilityState', { value: how, configurable: true });"
    )
    shown += " document.dispatchEvent(new Event('visibilitychange')); }"
    await page.evaluate(shown, "hidden")
    await ask(console.gateway.daemon, "web:behind", "web:b2", "meanwhile")
    await ask(console.gateway.daemon, "web:behind", "web:b3", "/status")
    assert await console.entry("meanwhile").count() == 0
    await page.evaluate(shown, "visible")

    await console.sees("stub: meanwhile")
    await console.sees("model: openai/stub")


async def test_what_is_told_before_a_first_reply_outlives_a_broken_connection(console: Console) -> None:
    """The page goes on from where its stream began: an answer in no transcript comes by events alone."""
    asked: list[str | None] = []
    told = asyncio.Event()

    async def breaks(route: Route) -> None:
        asked.append(await route.request.header_value("Last-Event-ID"))
        if len(asked) == 1:
            await route.fulfill(content_type="text/event-stream", body=": listening\n\nid: 0\n\n")
        else:
            await told.wait()
            await route.continue_()

    await console.page.route("**/v1/events?*", breaks)
    await console.open("chats/web:broken")
    await until(lambda: asked)
    await ask(console.gateway.daemon, "web:broken", "web:cmd2", "/status")
    told.set()

    await console.sees("model: openai/stub")
    assert asked[:2] == [None, "0"]


async def test_a_turn_that_ends_with_its_conversation_is_not_shown_as_running(console: Console) -> None:
    """Deleted here: the message is gone, and the one behind it answered. By somebody else: it is told."""
    model = console.gateway.model
    model.script += [Reply(text="too late", held=asyncio.Event()), Reply(text="behind is answered")]
    page = await console.open("chats/web:removed")
    await console.say("one that runs")
    # The message itself may stand in the history already.
    await expect(page.locator(".talk-head .badge.live")).to_be_visible()
    await console.say("one behind")
    await expect(page.locator("article.pending").last).to_contain_text("waiting")
    await page.get_by_role("button", name="Details").click()
    await page.get_by_role("button", name="Delete permanently").click()
    await page.get_by_role("dialog").last.get_by_role("button", name="Delete permanently").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await console.open("chats/web:removed")
    await console.sees("behind is answered")
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await expect(page.locator("article.pending")).to_have_count(0)
    assert await console.entry("one that runs").count() == 0
    kept = (console.gateway.workspace / "sessions").rglob("*.jsonl")
    assert not [path for path in kept if "one that runs" in path.read_text()]

    model.script.append(Reply(text="too late", held=asyncio.Event()))
    await console.say("another one that runs")
    # The message itself may stand in the history already.
    await expect(page.locator(".talk-head .badge.live")).to_be_visible()
    async with httpx.AsyncClient(timeout=30) as http:
        await http.post(f"{console.gateway.url}/clear-session", json={"key": "web:removed"})

    await console.sees("The conversation was deleted before this message was answered.")
    await expect(page.locator("article.pending")).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()


async def test_saving_the_details_changes_what_was_changed_there_alone(console: Console) -> None:
    """What somebody else wrote into the other field meanwhile stays."""
    lines = list(exchange(1, "a question", "an answer", NOW))
    session = write_session(console.gateway.workspace, "web:two-hands", lines, name="Old")
    page = await console.open("chats/web:two-hands")
    await console.sees("an answer")
    await page.get_by_role("button", name="Details").click()
    name = page.get_by_label("Name", exact=True)
    await expect(name).to_have_value("Old")
    async with httpx.AsyncClient(base_url=console.gateway.url, timeout=30) as http:
        theirs = {"name": "Theirs", "instructions": "Be brief."}
        await http.patch(f"/v1/sessions/{session}", json=theirs)
        for mine, saved in (("Mine", "Mine"), ("", None)):
            await name.fill(mine)
            async with page.expect_response("**/v1/sessions/*"):
                await page.get_by_role("button", name="Save").click()

            found = (await http.get(f"/v1/sessions/{session}")).json()
            assert (found["name"], found["instructions"]) == (saved, "Be brief.")
            # Pressed while it works, a button does nothing.
            await expect(page.get_by_role("button", name="Save")).not_to_have_attribute("aria-busy", "true")


async def test_a_notice_stands_under_its_question_and_the_rest_below_the_answer(console: Console) -> None:
    """Stopped with another question behind it; then a queued one while an answer is written."""
    half, model = asyncio.Event(), console.gateway.model
    model.script += [
        Reply(text="cut short in the middle, and never whole", half=asyncio.Event()),
        Reply(text="here is the second"),
    ]
    page = await console.open("chats/web:order")
    await console.say("first question")
    await expect(page.locator("article.draft")).to_contain_text("cut short")
    await console.say("second question")
    await expect(page.locator(".waits")).to_contain_text("1 message waits")
    stop = page.get_by_role("button", name="Stop")
    await stop.focus()
    await page.keyboard.press("Enter")
    await console.sees("here is the second")
    await expect(page.locator("article.notice")).to_have_count(1)
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await until(
        lambda: order_of(
            page, "first question", "cut short", "Stopped", "second question", "here is the second"
        )
    )

    model.script += [Reply(text="the third, and its second half", half=half), Reply(text="the fourth")]
    await console.say("third question")
    await expect(page.locator("article.draft")).to_contain_text("the thi")
    await console.say("fourth question")
    await expect(page.locator(".waits")).to_contain_text("1 message waits")
    await until(lambda: order_of(page, "third question", "the thi", "fourth question"))
    # A tab that comes in the middle shows the same.
    await page.reload()
    await expect(page.locator("article.draft")).to_contain_text("the thi")
    await until(
        lambda: order_of(page, "Stopped", "second question", "third question", "the thi", "fourth question")
    )
    half.set()
    await console.sees("the fourth")


async def order_of(page: Page, *texts: str) -> bool:
    """Say whether rows of the conversation hold these texts, one below the other."""
    tops = []
    for text in texts:
        box = await page.locator("article.entry", has_text=text).last.bounding_box()
        # Made anew in this moment, as when it is stored.
        if box is None:
            return False
        tops.append(box["y"])
    return tops == sorted(tops)


async def test_escape_stops_and_the_title_names_the_chat(console: Console) -> None:
    model = console.gateway.model
    model.script += [Reply(text="too late", held=asyncio.Event())]
    page = await console.open("chats/telegram:48201133")
    await expect(page).to_have_title("Weekend in Bergen · chat-gateway")
    await console.open("chats/web:escape")
    await expect(page).to_have_title("escape · chat-gateway")
    await console.say("a long one")
    await expect(page.locator(".talk-head .badge.live")).to_be_visible()
    await page.keyboard.press("Escape")

    await expect(page.locator("article.notice", has_text="Stopped")).to_be_visible()
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await expect(page.get_by_role("textbox", name="Message")).not_to_be_focused()


async def test_the_operator_sees_why_a_message_was_set_aside(console: Console) -> None:
    """Cause and cure stand under the notice, over a reload too, with the way to the parked messages."""
    page = await console.open("chats/web:refused")
    await console.say("[[refuse]]")

    why = page.locator("article.notice .why")
    await expect(why).to_contain_text("Why: refused")
    await page.reload()
    await expect(why).to_contain_text("Why: refused")
    await why.get_by_role("link").click()
    row = page.locator(".row-card", has_text="web:refused")
    await expect(row).to_contain_text("refused")
    await row.get_by_role("button", name="Drop").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    await expect(row).to_have_count(0)


async def test_half_an_answer_goes_with_its_last_try(console: Console) -> None:
    """Each try is shown from its beginning; once the message is parked its notice stands alone, also anew."""
    tries = [asyncio.Event(), asyncio.Event()]
    model = console.gateway.model
    model.script += [
        Reply(text=f"try {n} begins and never ends as it should", kind="unended", half=half)
        for n, half in enumerate(tries)
    ]
    page = await console.open("chats/web:torn")
    await console.say("tell me all")
    for n, half in enumerate(tries):
        await expect(page.locator("article.draft")).to_contain_text(f"try {n} be")
        await expect(page.locator("article.draft")).not_to_contain_text(f"try {1 - n}")
        half.set()

    for _ in range(2):
        notice = page.locator("article.notice", has_text="The model failed while answering")
        await expect(notice).to_have_count(1)
        await expect(notice.locator(".why")).to_contain_text("Why: failed")
        await expect(console.entry("tell me all")).to_have_count(1)
        await expect(page.get_by_text("try ")).to_have_count(0)
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await page.reload()
    await console.say("and now?")
    await console.sees("stub: and now?")


async def test_the_list_keeps_the_newest_in_view(console: Console) -> None:
    """At its top what comes is seen at once; further down it is told, and what is read stays in its place."""
    for number in range(16):
        at = NOW - timedelta(hours=30 + number)
        lines = list(exchange(number, "a question", "an answer", at))
        write_session(console.gateway.workspace, f"web:row-{number}", lines, begun=at)
    page = await console.open("chats")
    scroll, pill = page.locator(".chat-scroll"), page.get_by_role("button", name="1 new")
    afar = page.locator(".chat-row:has([href*='from-afar'])")
    await expect(page.locator(".chat-row").nth(5)).to_be_visible()
    await ask(console.gateway.daemon, "web:from-afar", "web:afar1", "hello from afar")
    await expect(afar).to_be_in_viewport()
    await until(lambda: at_top(scroll))
    await page.keyboard.press("n")
    await console.say("a new chat")
    await console.sees("stub: a new chat")
    await expect(page.locator(".chat-row.current")).to_be_in_viewport()
    await until(lambda: at_top(scroll))

    read = page.locator(".chat-row:has([href$='row-3'])")
    # Somewhere among the chats of the other tests.
    await until(lambda: down_to(scroll, read))
    before = await read.bounding_box()
    await ask(console.gateway.daemon, "web:from-afar", "web:afar2", "and again")
    await expect(pill).to_be_visible()
    assert await read.bounding_box() == before
    await pill.click()
    await expect(afar).to_be_in_viewport()
    await expect(pill).to_be_hidden()
    # Who writes into a chat further down goes with it.
    near = page.locator(".chat-row:has([href$='row-2'])")
    await until(lambda: down_to(scroll, near))
    await near.click()
    await console.say("here as well")
    await expect(page.locator(".chat-row.current:has([href$='row-2'])")).to_be_in_viewport()


async def at_top(scroll: Locator) -> bool:
    return bool(await scroll.evaluate("(one) => one.scrollTop === 0"))


async def down_to(scroll: Locator, row: Locator) -> bool:
    """Scroll a list on until a row of it is in the middle of what is shown; say whether it is."""
    box = await row.bounding_box() if await row.count() else None
    if box is None:
        await scroll.evaluate("(one) => (one.scrollTop += 300)")
        return False
    await scroll.evaluate("(one, by) => (one.scrollTop += by)", box["y"] - 400)
    return abs(box["y"] - 400) < 5


async def test_nothing_is_counted_while_the_gateway_is_away_or_tries_again(console: Console) -> None:
    """A message that is tried again waits for no turn; one that runs is counted as far as that is known."""
    model, held = console.gateway.model, asyncio.Event()
    page = await console.open("chats/web:counts")
    head, counter = page.locator(".talk-head"), page.locator(".chat-row.current [data-since]")
    model.away = True
    await console.say("once more")
    await expect(head).to_contain_text("trying again")
    await expect(page.locator(".waits")).to_be_empty()
    model.away = False
    await console.sees("stub: once more")
    # What the list still says of the first turn must not pass for the second.
    await expect(counter).to_have_count(0)

    model.script.append(Reply(text="at last", held=held))
    await console.say("how long?")
    await expect(head).to_contain_text("answering")
    await expect(counter).to_be_visible()
    await console.context.set_offline(True)
    await expect(head).to_contain_text("gateway unreachable")
    shown = await counter.inner_text()
    # An hour on, as far as the page's own second hand knows.
    await page.evaluate("{ const now = Date.now; Date.now = () => now() + 3600000; }")
    await page.evaluate("new Promise((ticked) => setTimeout(ticked, 1500))")
    assert await counter.inner_text() == shown
    await console.context.set_offline(False)
    held.set()
    await console.sees("at last")
