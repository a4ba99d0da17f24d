"""What people, models and tools write stays text: nothing of it runs, and no other host is asked."""

from __future__ import annotations

import json

import httpx
import pytest
from playwright.async_api import expect

from session.transcript.line import make_line, stamp
from tests.browser.rig import Console
from tests.browser.seeds import NOW, UTC, write_session
from tests.support.guarantee import guarantee
from tests.support.model_server import Reply

pytestmark = guarantee(
    "security",
    "Text from people, models and tools never becomes markup on the page, which contacts no other host.",
)

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=https://evil.example/x.png onerror=alert(1)>",
    "<svg onload=alert(1)><style>@import 'https://evil.example/a.css'</style>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe><a href='javascript:alert(1)'>press</a>",
    "![picture](https://evil.example/track.png) ![x](data:image/svg+xml,<svg/onload=alert(1)>)",
    "[press](javascript:alert(1)) [press](JaVaScRiPt&#58;alert(1)) [p]( data:text/html,<script>)",
    "[a](vbscript:x) <javascript:alert(1)> [b](<java\nscript:alert(1)>) [c](//evil.example) [d](/v1/parked)",
    '"><b onmouseover=alert(1)>bold</b> ${alert(1)} {{alert(1)}} \u202etxt.exe \u0000\u2028',
    "```<img src=x onerror=alert(1)>\n<script>alert(1)</script>\n```",
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| `</code><script>alert(1)</script>` | **<i>x</i>** |",
)
ALL = "\n\n".join(HOSTILE)


async def test_hostile_words_in_every_place_stay_words(console: Console) -> None:
    """In a message, an answer, a name, a tool's result: shown as they were written."""
    gateway = console.gateway
    model = gateway.model
    model.script.append(Reply(text=ALL, tool_calls=[("ls", json.dumps({"path": HOSTILE[1]}))]))
    model.script.append(Reply(text=ALL))
    page = await console.open("chats/web:hostile")
    await console.say(ALL)
    await expect(page.locator("article.assistant", has_text="alert(1)").last).to_be_visible()
    for fold in await page.locator("details.call summary").all():
        await fold.click()
    await page.get_by_role("button", name="Details").click()
    await page.get_by_label("Name", exact=True).fill(HOSTILE[1])
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".chat-row.current .chat-title")).to_have_text(HOSTILE[1])
    await page.keyboard.press("Escape")

    talk = page.locator(".conversation")
    assert await talk.locator("script, iframe, img, style, object, embed, b").count() == 0
    assert "<script>alert(1)</script>" in await talk.inner_text()
    hrefs = await talk.locator(".markdown a").evaluate_all("all => all.map(one => one.href)")
    assert hrefs
    assert all(href.startswith("https://evil.example/") for href in hrefs)
    rel = await talk.locator(".markdown a").first.get_attribute("rel")
    assert rel == "noopener noreferrer nofollow"


async def test_hostile_stored_lines_and_files_stay_words(console: Console) -> None:
    """A transcript that others wrote: senders, file names, tool names, summaries; a file that is a page."""
    workspace = console.gateway.workspace
    at = stamp(NOW, UTC)
    evil = {"kind": "photo", "name": HOSTILE[1], "mime": "image/png", "size": 5, "ref": "media/aa/evil.png"}
    page_file = {
        "kind": "document",
        "name": "a.html",
        "mime": "text/html",
        "size": 9,
        "ref": "media/aa/a.html",
    }
    outside = {
        "kind": "photo",
        "name": "o",
        "mime": "image/png",
        "size": 1,
        "ref": "https://evil.example/o.png",
    }
    (workspace / "media" / "aa").mkdir(parents=True, exist_ok=True)
    (workspace / "media" / "aa" / "evil.png").write_text("<script>alert(1)</script>")
    (workspace / "media" / "aa" / "a.html").write_text("<script>alert(document.domain)</script>")
    call = [{"id": "c1", "type": "function", "function": {"name": HOSTILE[0], "arguments": HOSTILE[1]}}]
    lines = [
        make_line(
            "user",
            ALL,
            at,
            sender={"id": "1", "name": HOSTILE[1]},
            attachments=[evil, page_file, outside],
            message_id="m1",
        ),
        make_line("assistant", "", at, tool_calls=call, message_id="m1"),
        make_line("tool", ALL, at, tool_call_id="c1", name=HOSTILE[0], is_error=True, message_id="m1"),
        make_line("assistant", "done", at, message_id="m1", final=True),
        make_line("system", ALL, at, kind="overlay", first_kept=3, tokens_before=9),
    ]
    write_session(workspace, "web:planted", lines, name=HOSTILE[0])
    folder = workspace / "memory" / "chats" / "web_planted"
    folder.mkdir(parents=True)
    (folder / "HISTORY.md").write_text(ALL)

    page = await console.open("chats/web:planted")
    await console.sees("done")
    for fold in await page.locator("details summary").all():
        await fold.click()
    await expect(page.locator(".talk img")).to_have_count(0)
    assert await page.locator(".talk").locator("script, iframe, style, b").count() == 0
    await console.open("memory?key=web:planted&tab=history")
    await expect(page.locator(".doc")).to_contain_text("<script>alert(1)</script>")
    await console.open("search?q=alert")
    await expect(page.locator(".hit").first).to_be_visible()
    async with httpx.AsyncClient() as http:
        for name in ("evil.png", "a.html"):
            answer = await http.get(f"{console.gateway.url}/v1/media/aa/{name}")
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["content-disposition"].startswith("attachment")
            assert "sandbox" in answer.headers["content-security-policy"]


# As a model may write them: numbers that no browser can hold, letters that turn or hide what is beside them.
SLY = (
    '{"path": "a.txt", "content": "safe \u202e fr- mr \u202c\u200b", "room": 1234567890123456789,'
    ' "sum": 0.10, "of": [], "and": {"a": [1, {}]}}'
)


async def test_a_call_that_is_asked_about_is_shown_as_it_would_run(console: Console) -> None:
    """In the card, and in the fold of the conversation afterwards."""
    console.gateway.model.script.append(Reply(text="", tool_calls=[("write", SLY)]))
    page = await console.open("chats/web:sly")
    await console.say("go")
    card = page.locator(".conversation .approval")
    shown = await card.locator("pre").inner_text()
    await card.get_by_role("button", name="Deny").click()
    await expect(card).to_have_count(0)
    await page.locator("details.call summary").click()
    folded = await page.locator("details.call pre").first.inner_text()
    brief = await page.locator(".tool-brief").inner_text()

    for text in (shown, folded):
        assert json.loads(text) == json.loads(SLY)
        assert '"room": 1234567890123456789,\n' in text
        assert r"safe \u202e fr- mr \u202c\u200b" in text
    assert '"sum": 0.10,\n  "of": [],\n  "and": {\n    "a": [\n      1,\n      {}\n    ]\n  }\n}' in folded
    assert "\u202e" not in brief


RENDERED = {
    "**a** *b* ~~c~~ `d`": "P[STRONG[a] EM[b] DEL[c] CODE[d]]",
    "snake_case_name and 2 * 3 * 4 stay": "P[snake_case_name and 2 * 3 * 4 stay]",
    "# One\n\ntext\nmore": "H3[One]P[textBR[]more]",
    "- a\n  - b\n- c": "UL[LI[aUL[LI[b]]]LI[c]]",
    "3. a\n4. b": "OL[LI[a]LI[b]]",
    "- [x] done": "UL[LI[INPUT[]done]]",
    "> a\n> b": "BLOCKQUOTE[P[aBR[]b]]",
    "see https://a.example/x_(y), ok": "P[see A[https://a.example/x_(y)], ok]",
    "[a [b](https://b.example) c](https://a.example)": "P[[a A[b] c](A[https://a.example])]",
    "\\*not\\* `a **b**`": "P[*not* CODE[a **b**]]",
    "---": "HR[]",
    "## a ##  ": "H4[a]",
    "# ": "H3[]",
    "#a": "P[#a]",
    "a|b\n:-|-:\nc|d\ne": "DIV[TABLE[THEAD[TR[TH[a]TH[b]]]TBODY[TR[TD[c]TD[d]]]]]P[e]",
    "|a|b|\n|---|---|\n|c|": "DIV[TABLE[THEAD[TR[TH[a]TH[b]]]TBODY[TR[TD[c]]]]]",
    "a|b\n-|x": "P[a|bBR[]-|x]",
    "``a ` b``": "P[CODE[a ` b]]",
}
SHAPE = """
async (text) => {
  const { markdown } = await import("/page/js/markdown.js");
  const shape = (node) => node.nodeType === 3 ? node.data
    : `${node.tagName}[${[...node.childNodes].map(shape).join("")}]`;
  return [...markdown(text).childNodes].map(shape).join("");
}
"""


async def test_markdown_becomes_these_nodes(console: Console) -> None:
    page = await console.open("chats")
    for text, wanted in RENDERED.items():
        assert await page.evaluate(SHAPE, text) == wanted, text


TOOK = """
async (text) => {
  const { markdown } = await import("/page/js/markdown.js");
  const begun = performance.now();
  markdown(text);
  return performance.now() - begun;
}
"""
# A bound that no machine misses by being slow: what is more than linear here takes minutes.
MOST_MS = 15_000
MANY = 20_000


MARKS = (
    "**a ",
    "`a ",
    "[a](",
    "> ",
    "- a\n  ",
    "| a ",
    "_a ",
    "![[",
    "<https://a",
    "# ",
    "1. ",
    "~~",
    "\\",
    "# \n",
)
MARKS += ("*** \n", "- \n", "> \n\n", "a\n\n", "```\n```\n")
LONG = {
    "fence": "~" * MANY + "`",
    "info": "~~~" + " " * MANY + "`",
    "word": "~~~" + "a" * MANY + "`",
    "heading": "# a" + " " * MANY + "b",
    "separator": "# " + " " * MANY + "x\u2028",
    "divider": "a|b\n" + " " * MANY + "-" + " " * MANY + "x",
    "list": "- a" + "\n" * MANY + "x",
    "table": "a|" * (MANY // 2) + "\n" + "-|" * (MANY // 2) + "\n" + "b|\n" * 1_000,
    # As a model in a loop writes it.
    **{repr(mark): mark * (200_000 // len(mark)) for mark in MARKS},
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
async def test_no_text_keeps_the_page_busy(console: Console, text: str) -> None:
    """A line as long as a chat shows a text, or as much of one mark, is drawn in bounded time."""
    page = await console.open("chats")

    assert await page.evaluate(TOOK, text) < MOST_MS


async def test_a_text_of_too_many_blocks_is_whole(console: Console) -> None:
    """What comes after 5,000 blocks stands as it was written."""
    page = await console.open("chats")
    asked = """async () => {
      const { markdown } = await import("/page/js/markdown.js");
      const made = markdown("# a\\n".repeat(6000) + "the end");
      document.body.append(made);
      const last = made.lastChild;
      return [made.dir, made.children.length, last.tagName, last.textContent.endsWith("the end")];
    }"""

    assert await page.evaluate(asked) == ["auto", 5_001, "PRE", True]
