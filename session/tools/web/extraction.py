"""Makes text of a page: Markdown of HTML, what is said of anything else."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from durable import spawn_async
from session.errors import ToolError
from session.tools.web.fetching import Page

CHILD = Path(__file__).with_name("extract_child.py")
_HTML = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True, slots=True)
class Text:
    """What a page says; ``title`` is empty where it has none."""

    text: str
    title: str = ""


async def text_of(page: Page) -> Text:
    """Extract the text; cancelled, end the process that does it.

    Raises:
        ToolError: nothing can be made of it.
    """
    start = page.data[:512].lstrip().lower()
    if page.kind in _HTML or (not page.kind and start.startswith(b"<")):
        return await _extracted(page)
    try:
        text = page.data.decode(page.charset or "utf-8", "replace")
    except LookupError:
        text = page.data.decode("utf-8", "replace")
    return Text(text.removeprefix("\ufeff"))


async def _extracted(page: Page) -> Text:
    asked = json.dumps({"url": str(page.target.url), "charset": page.charset}).encode()
    try:
        # The library is installed beside this program; nothing else of ours is handed on.
        child = await spawn_async([sys.executable, "-I", str(CHILD)])
    except OSError as error:
        raise ToolError("the page cannot be read now") from error
    try:
        said, _ = await child.communicate(asked + b"\n" + page.data)
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.wait())
    if child.returncode != 0:
        raise ToolError(f"{page.target.host}: the page is such that no text can be extracted")
    found = json.loads(said)
    return Text(found["text"], found["title"])
