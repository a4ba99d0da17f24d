"""Makes text of a page: Markdown of HTML, what is said of anything else."""

from __future__ import annotations

import asyncio
import codecs
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from durable import spawn_async
from session.errors import ToolError
from session.tools.web.fetching import Page

CHILD = Path(__file__).with_name("extract_child.py")
# A server chooses among these alone, under whatever name Python knows them: of Python's other codecs some
# take a quadratic time, interpret what they read, or raise errors of their own.
CHARSETS: Final = frozenset(
    (
        *(
            "utf-8",
            "utf-8-sig",
            "utf-16",
            "utf-16-le",
            "utf-16-be",
            "utf-32",
            "utf-32-le",
            "utf-32-be",
            "ascii",
        ),
        *(f"iso8859-{number}" for number in range(1, 17) if number != 12),
        *(f"cp{number}" for number in (437, 850, 852, 855, 862, 866, 874, *range(1250, 1259))),
        *("koi8-r", "koi8-t", "koi8-u", "kz1048", "mac-cyrillic", "mac-greek", "mac-latin2", "mac-roman"),
        *("mac-turkish", "tis-620", "gb18030", "gb2312", "gbk", "big5", "big5hkscs", "cp950"),
        *("cp932", "shift_jis", "euc_jp", "iso2022_jp", "cp949", "euc_kr"),
    )
)
# What the web says, and Python does not know.
_OF_THE_WEB = {"windows-31j": "cp932", "x-sjis": "cp932", "windows-874": "cp874"}
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
    text = page.data.decode(charset_of(page.charset) or "utf-8", "replace")
    return Text(text.removeprefix("\ufeff"))


def charset_of(name: str) -> str:
    """Return Python's name of the charset that a server names, empty where it is not one of ``CHARSETS``."""
    try:
        known = codecs.lookup(_OF_THE_WEB.get(name.lower(), name)).name
    except (LookupError, ValueError):
        # A name may hold a NUL, or what is no ASCII.
        return ""
    return known if known in CHARSETS else ""


async def _extracted(page: Page) -> Text:
    asked = json.dumps({"url": str(page.target.url), "charset": charset_of(page.charset)}).encode()
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
        raise ToolError(f"{page.target.host}: no text can be extracted from this page")
    found = json.loads(said)
    return Text(found["text"], found["title"])
