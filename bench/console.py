"""The page with 5,000 chats and a conversation of 10,000 messages: first paint, frames while it scrolls."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

from playwright.async_api import Page

from bench.application import Process
from bench.place import folder
from bench.row import Row, median
from gateway.http.page import page_files
from tests.browser.chromium import chromium
from tests.browser.seeds import long_chat, many_chats

CHATS, MESSAGES, TIMES = 5_000, 10_000, 5
PAINT_S, FRAMES_PER_S, PAGE_KB = 1.0, 50, 150
SCROLLED_S, STEP_PX = 4, 180
CONFIG = {"broker.url": "embedded", "model.name": "echo"}
# Moves by a step each frame, as a held key or a wheel does, and counts the frames that were drawn.
SCROLL = """
async ([selector, step, seconds]) => {
  const place = document.querySelector(selector);
  const began = performance.now();
  let frames = 0, longest = 0, before = began;
  for (;;) {
    const now = await new Promise(requestAnimationFrame);
    frames += 1;
    longest = Math.max(longest, now - before);
    before = now;
    if (now - began > seconds * 1000) return [frames / ((now - began) / 1000), longest];
    place.scrollTop += step;
  }
}
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def run() -> list[Row]:
    """Measure first paint, both lists, and what the page weighs."""
    with folder() as workspace:
        many_chats(workspace, CHATS)
        long_chat(workspace, "web:long", MESSAGES)
        daemon = Process(workspace, CONFIG, role="all")
        try:
            found = asyncio.run(_measured(daemon.ready()[1]))
        finally:
            daemon.end()
    size_kb = sum(len(gzip.compress(file.content, 9)) for file in page_files()) / 1000
    paint_s, chats, talk = found["paint"], found["chats"], found["talk"]
    return [
        Row("first paint of the page", paint_s, PAINT_S, "s", "limit", paint_s / PAINT_S, at_most=1),
        _frames(f"{CHATS:,} chats scrolled", *chats),
        _frames(f"{MESSAGES:,} messages scrolled", *talk),
        Row("the page, compressed", size_kb, PAGE_KB, "kB", "limit", size_kb / PAGE_KB, at_most=1),
    ]


def _frames(name: str, rate: float, longest_ms: float) -> Row:
    notes = {"longest frame": f"{longest_ms:.0f} ms"}
    return Row(name, rate, FRAMES_PER_S, "frames/s", "limit", rate / FRAMES_PER_S, at_least=1, notes=notes)


async def _measured(url: str) -> dict[str, Any]:
    async with chromium() as browser:
        paints = []
        for _ in range(TIMES):
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(f"{url}#/chats")
            await page.wait_for_function(f"({PAINT}) !== null")
            paints.append(float(await page.evaluate(PAINT)) / 1000)
            await context.close()
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(f"{url}#/chats/web%3Along")
        await page.locator("article.entry").first.wait_for()
        await page.locator(".chat-row").first.wait_for()
        await _read_all(page)
        chats = await page.evaluate(SCROLL, [".chat-scroll", STEP_PX, SCROLLED_S])
        talk = await page.evaluate(SCROLL, [".talk", -STEP_PX, SCROLLED_S])
        return {"paint": median(paints), "chats": chats, "talk": talk}


async def _read_all(page: Page) -> None:
    """Go up until the whole conversation is here, then down to its end again."""
    size = "Number(document.querySelector('.talk [aria-setsize]')?.getAttribute('aria-setsize') ?? 0)"
    while int(await page.evaluate(size)) < MESSAGES:
        await page.evaluate("document.querySelector('.talk').scrollTop = 0")
        await page.wait_for_timeout(50)
    await page.evaluate("document.querySelector('.talk').scrollTop = 1e9")
    await page.wait_for_timeout(200)
