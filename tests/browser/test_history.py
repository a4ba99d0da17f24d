"""What was said in a chat as the page reads it, while events come and older pages are asked for."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest
from playwright.async_api import Route

from tests.browser.rig import Console
from tests.browser.seeds import NOW, exchange, write_session

# Two readings of one conversation at once, and what it has in the end: the texts, session by session.
READ_AT_ONCE = """
async ([key, doing]) => {
  const { History } = await import("/page/js/history.js");
  const one = new History(key);
  await one.open();
  await Promise.all({
    "open and newer": () => {
      one.fresh = new History(key);
      return [one.fresh.open(), one.fresh.newer()];
    },
    "older and open": () => [one.older(), one.open()],
    "open and open": () => [one.open(), one.open()],
    "open, newer and open": () => [one.open(), one.newer(), one.open()],
  }[doing]());
  return (one.fresh ?? one).segments.map((segment) => segment.entries.map((entry) => entry.text));
}
"""


@pytest.mark.parametrize(
    "doing", ["open and newer", "older and open", "open and open", "open, newer and open"]
)
async def test_a_conversation_that_is_read_twice_at_once_stands_there_once(
    console: Console, doing: str
) -> None:
    """The first to ask is answered after the second: as when an event comes while a long one is opened."""
    key = f"web:at-once-{doing.replace(' ', '-').replace(',', '')}"
    for days in (3, 2, 0):
        begun = NOW - timedelta(days=days, hours=1)
        lines = exchange(days, f"question {days}", f"answer {days}", begun)
        ended = begun + timedelta(minutes=5) if days else None
        write_session(console.gateway.workspace, key, list(lines), begun=begun, ended=ended)
    page = await console.open("chats")
    asked, second, first_done = 0, asyncio.Event(), asyncio.Event()

    async def crossed(route: Route) -> None:
        nonlocal asked
        asked += 1
        # Two are of the opening that nothing disturbs.
        if asked == 3:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(second.wait(), 1)
        elif asked == 4:
            second.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(first_done.wait(), 1)
        await route.continue_()
        if asked >= 4:
            first_done.set()

    await page.route("**/v1/sessions/*/entries*", crossed)

    shown = await page.evaluate(READ_AT_ONCE, [key, doing])

    wanted = [[f"question {days}", f"answer {days}"] for days in (2, 0)]
    assert shown in (wanted, [["question 3", "answer 3"], *wanted])
