"""A process of its own that extracts the text of one page: a hostile page may hang or break what reads it.

It is run by its path and imports nothing of ours. Standard input is one line of JSON and the bytes of the
page, standard output JSON. The charset is one that may be read, or empty: whoever asks has seen to that.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress

MEMORY_BYTES = 2**30
CPU_S = 15
MAX_CHARS = 1_000_000
MAX_TITLE_CHARS = 300


def main() -> None:
    """Extract the text, as Markdown, and the title."""
    # Not every event loop starts a process without what it has open itself.
    os.closerange(3, 2**20)
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S)):
        # The machine may have set a tighter limit already.
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    asked = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    from trafilatura import extract, html2txt, load_html

    page: bytes | str = data
    if asked["charset"]:
        page = data.decode(asked["charset"], "replace")
    tree = load_html(page)
    title, text = "", ""
    if tree is not None:
        title = " ".join((tree.findtext(".//title") or "").split())
        text = extract(
            page,
            url=asked["url"],
            output_format="markdown",
            include_comments=False,
            include_links=True,
            include_tables=True,
            favor_recall=True,
        ) or html2txt(page)
    said = {"title": title[:MAX_TITLE_CHARS], "text": (text or "")[:MAX_CHARS]}
    sys.stdout.buffer.write(json.dumps(said).encode())


if __name__ == "__main__":
    main()
