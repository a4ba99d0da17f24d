"""What the rendering for Telegram promises, for any text."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from types import FrameType
from typing import Any

import pytest
import telegram
from hypothesis import example, given
from hypothesis import strategies as st

from channels.base import Rendered
from channels.telegram.formatting import MAX_BLOCK_BYTES, MAX_ENTITIES, PART_BYTES, parts, render
from channels.text import utf16_len
from durable import is_blank
from tests.support.examples import drawn
from tests.support.telegram_chats import check_entities
from tests.support.telegram_server import TelegramServer

GRIN = "\U0001f600"
WORDS = st.integers(0, 10**6).map(lambda n: f"w{n}x")
STYLES = (
    "**",
    "*",
    "_",
    "__",
    "~~",
    "~",
    "`",
    "``",
    "||",
    "|",
    "\\",
    "^",
    "{",
    "}",
    "@",
    "#",
    ":",
    " ",
    "  ",
)
LINKS = ["[", "](https://a.example/", "](b.md)", "](", ")", "![", "https://b.example", "[1]", "<", ">", "]"]
TAGS = ("<b>", "</b>", "<br/>", "<!-- ", " -->", "&", "&amp;", "<tg-spoiler>", "</tg-spoiler>", "[1]: ")
MATHS = ("$", "$$", r"\(", r"\)", r"\[", r"\]", GRIN, "e\u0301", "\u200d")
BREAKS = ("\n", "\n\n", "\r\n", "    ", "\t")
ITEM_MARKS = ("# ", "### ", "> ", ">> ", "- ", "* ", "1. ", "  - ", "- [ ] ", "- [x] ")
FENCES = ("```\n", "```py\n", "\n```\n", "~~~\n", "---\n", "===\n", "<div>\n", "</div>\n")
TABLES = ("\n| a | b |\n|---|---|\n", "\n| ", " |\n", " | ", "\na|b\n-|-\n")
MARKS = st.sampled_from((*STYLES, *LINKS, *TAGS, *MATHS, *BREAKS, *ITEM_MARKS, *FENCES, *TABLES))
MARKDOWN = st.lists(WORDS | MARKS, max_size=60).map("".join)


def entities(pieces: list[Rendered]) -> list[list[dict[str, Any]]]:
    found = []
    for piece in pieces:
        assert isinstance(piece.markup, tuple)
        found.append([dict(entity) for entity in piece.markup])
    return found


def marked(piece: Rendered) -> list[tuple[str, str]]:
    """The entities of a piece with the text that each covers."""
    units = piece.plain.encode("utf-16-le")
    return [
        (
            entity["type"],
            units[2 * entity["offset"] : 2 * (entity["offset"] + entity["length"])].decode("utf-16-le"),
        )
        for entity in entities([piece])[0]
    ]


def shown(pieces: list[Rendered]) -> str:
    """All that can be seen or followed: texts, and the addresses of links."""
    links = [str(entity.get("url", "")) for found in entities(pieces) for entity in found]
    return "\n".join([*(piece.plain for piece in pieces), *links])


@drawn(500)
@given(MARKDOWN | st.text(max_size=200), st.sampled_from([16, 40, 100, 4096]))
@example("**a ||b** c||", 4096)
@example(f"**{GRIN * 30}**", 17)
def test_every_piece_is_within_the_limit_with_sound_entities(text: str, limit: int) -> None:
    pieces = render(text, limit)

    for piece, found in zip(pieces, entities(pieces), strict=True):
        assert 0 < utf16_len(piece.plain) <= limit
        assert not is_blank(piece.plain)
        assert len(found) <= MAX_ENTITIES
        assert check_entities(piece.plain, found) == found
        for one, other in combinations(found, 2):
            assert nested(one, other), (one, other)


def nested(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether Telegram lets two entities of one text stand so."""
    outer, inner = sorted((one, other), key=lambda entity: (entity["offset"], -entity["length"]))
    if outer["offset"] + outer["length"] <= inner["offset"]:
        return True
    kinds = {outer["type"], inner["type"]}
    if {"code", "pre"} & kinds and not {"blockquote", "expandable_blockquote"} & kinds:
        return False
    within = outer["offset"] + outer["length"] >= inner["offset"] + inner["length"]
    return within and len(kinds) == 2


@drawn(500)
@given(MARKDOWN, st.sampled_from([24, 100, 4096]))
@example("[w1x]: https://w2x.example\n\nw3x", 4096)
@example("<div>\nw1x\n</div>\n\n<w2x> $w3x$ \\(w4x^2\\)", 4096)
@example("| w1x | b |\n|---|---|\n| [w2x](https://w3x.example) | w4x |", 4096)
@example("[](https://w1x.example) ![](https://w2x.example/a.png) [w3x](w4x.md)", 4096)
def test_every_word_is_shown_and_in_order(text: str, limit: int) -> None:
    words = re.findall(r"w\d+x", text.replace("```w", "```\nw").replace("~~~w", "~~~\nw"))

    pieces = render(text, limit)

    whole = re.sub(r"\s", "", shown(pieces))
    assert [word for word in words if word not in whole and not is_info(word, text)] == []


def is_info(word: str, text: str) -> bool:
    """Whether a word stands where it names the language of code."""
    return bool(re.search(rf"(?:```|~~~)[^\n]*{word}", text))


TABLE = [("pre", "a     | b\n------+-----\nc | d | e||f")]


async def test_what_it_renders_is_taken_by_the_server_as_it_is() -> None:
    text = (
        f"# Title\n\n**bold {GRIN}** `code` [link](https://a.example) ||secret||\n\n> quote\n\n```py\nx\n```"
        * 60
    )
    pieces = render(text)

    async with TelegramServer() as server, telegram.Bot(server.token, base_url=server.base_url) as bot:
        server.add_chat(1)
        for piece, found in zip(pieces, entities(pieces), strict=True):
            await bot.send_message(1, piece.plain, entities=[telegram.MessageEntity(**one) for one in found])

    assert [sent.text for sent in server.sent] == [piece.plain for piece in pieces]
    assert [sent.entities for sent in server.sent] == entities(pieces)


@pytest.mark.parametrize(
    ("text", "plain", "found"),
    [
        (
            "**a** *b* ~~c~~ `d`",
            "a b c d",
            [("bold", "a"), ("italic", "b"), ("strikethrough", "c"), ("code", "d")],
        ),
        ("# Title\n\ntext", "Title\n\ntext", [("bold", "Title"), ("underline", "Title")]),
        (f"{GRIN} **a**", f"{GRIN} a", [("bold", "a")]),
        ("```py\nx = 1\n```", "x = 1", [("pre", "x = 1")]),
        ("[a](https://b.example)", "a", [("text_link", "a")]),
        ("[`a`](https://b.example)", "a", [("text_link", "a")]),
        ("**a `b` c**", "a b c", [("bold", "a "), ("code", "b"), ("bold", " c")]),
        ("> a\n> b", "a\nb", [("blockquote", "a\nb")]),
        ("- a\n- [ ] b\n- [x] c", "• a\n☐ b\n☑ c", []),
        (
            "- a\n  | b |\n  |---|\n  | c |\n\n  d\n- > e",
            "• a\nb\n-\nc\nd\n• e",
            [("pre", "b\n-\nc"), ("blockquote", "e")],
        ),
        ("||secret||", "secret", [("spoiler", "secret")]),
        (
            "请看*重要。*请，~~삭제.~~요",
            "请看重要。请，삭제.요",
            [("italic", "重要。"), ("strikethrough", "삭제.")],
        ),
        ("see **src/__init__.py**", "see src/__init__.py", [("code", "src/__init__.py")]),
        (
            '**หมายเหตุ:**เปิด **"שלום"**עולם **مهم:**نص',
            'หมายเหตุ:เปิด "שלום"עולם مهم:نص',
            [("bold", "หมายเหตุ:"), ("bold", '"שלום"'), ("bold", "مهم:")],
        ),
        (
            "[![a](https://b.example)](https://c.example)",
            "![a](https://b.example)",
            [("text_link", "![a](https://b.example)")],
        ),
        ("main.tf, id_rsa.pub", "main.tf, id_rsa.pub", [("code", "main.tf"), ("code", "id_rsa.pub")]),
        ("**__init__** of __main__", "__init__ of __main__", [("bold", "__init__")]),
        ("| a | b |\n|---|---|\n| `c | d` | `e||f` |", "a     | b\n------+-----\nc | d | e||f", TABLE),
        (
            "README.md, not https://a.example/README.md",
            "README.md, not https://a.example/README.md",
            [("code", "README.md")],
        ),
        ("*https://a.example/_b_*", "https://a.example/_b_", [("italic", "https://a.example/_b_")]),
    ],
)
def test_markdown_becomes_entities(text: str, plain: str, found: list[tuple[str, str]]) -> None:
    (piece,) = render(text)

    assert piece.plain == plain
    assert marked(piece) == found


@pytest.mark.parametrize(
    "text",
    [
        "if a || b: c || d",
        "List<String> and <b>tags</b>",
        "<div>\nblock\n</div>",
        "It costs $5 or $x$, $HOME_DIR:$PATH",
        r"\(x^2\) and \[ \frac{a}{b} \]",
        "[a](docs/a_b_c.txt)",
        "[a](http://localhost:8006/)",
        "[1]: https://a.example/x_y_z",
        "![](https://a.example/p.png)",
        "*unclosed",
        "about ~5 to ~10",
        "<tg-spoiler>x</tg-spoiler>",
        "https://github.com/a/b/blob/main/pkg/__init__.txt",
        "https://x.org/_next/data_/a and www.x.org/q?a*b*c or _a_b_@x.org",
        "2*3*4, x**y**z and obj.__class__.__name__",
        "src/*/a/*.txt in pkg/__init__/a~~b~~c/",
        r"E:\work\.cfg\_tmp and \\server\share\_a_ and ..\_b or %HOME%\_c",
        r"$$\int_0^1 x_i\,dx$$ and $\\a\_b$",
        "before\n\n```python\n```\n\nafter",
    ],
)
def test_what_telegram_has_no_form_for_is_shown_as_written(text: str) -> None:
    assert render(text) == [Rendered(text, ())]


def test_a_used_definition_becomes_a_link() -> None:
    (piece,) = render("see [docs][1]\n\n[1]: https://a.example/x")

    assert piece.plain == "see docs"
    assert entities([piece])[0][0]["url"] == "https://a.example/x"


def test_a_table_keeps_its_columns_its_links_and_surplus_cells() -> None:
    (piece,) = render("| name | site |\n|---|---|\n| ada | [q](https://q.example) |\n| b || c | d |")

    lines = [re.split(r" *\| +", line.strip(), maxsplit=1) for line in piece.plain.split("\n")]
    assert lines[0] == ["name", "site"]
    assert lines[2:] == [["ada", "[q](https://q.example)"], ["b", "| c | d |"]]
    assert [kind for kind, _ in marked(piece)] == ["pre"]


def test_long_code_goes_on_as_code_of_the_same_language() -> None:
    code = "\n".join(f"    line({n})" for n in range(100))

    pieces = render(f"Before.\n\n```python\n{code}\n```\n\nAfter.", 200)

    parts = [entity for found in entities(pieces) for entity in found]
    assert {(entity["type"], entity["language"]) for entity in parts} == {("pre", "python")}
    assert "\n".join(text for piece in pieces for kind, text in marked(piece)) == code


def test_what_fits_in_a_piece_is_not_torn() -> None:
    pieces = render(
        "word " * 10 + "[a link of some words](https://a.example) " + "\n\n```\ncode\nmore\n```", 64
    )

    assert [marked(piece) for piece in pieces] == [
        [],
        [("text_link", "a link of some words"), ("pre", "code\nmore")],
    ]


def test_more_than_a_hundred_entities_take_more_pieces() -> None:
    pieces = render(" ".join(f"**w{n}**" for n in range(250)))

    assert [len(found) for found in entities(pieces)] == [100, 100, 50]
    assert " ".join(piece.plain for piece in pieces) == " ".join(f"w{n}" for n in range(250))


@pytest.mark.parametrize("text", ["", " \n\t", "\x00", "\u3000"])
def test_blank_text_gives_no_piece(text: str) -> None:
    assert render(text) == []


@pytest.mark.parametrize(
    "text", ["```\n```", "[a]: https://b.example", "---", "|", "# ", "> ", "**", "\ud83d", "&#32;"]
)
def test_text_that_is_all_markup_is_not_lost(text: str) -> None:
    (piece,) = render(text)

    assert not is_blank(piece.plain)


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    assert render("a\ud83d b\ud83d\ude00") == [Rendered(f"a\ufffd b{GRIN}", ())]


def test_it_imports_no_client_and_opens_no_connection() -> None:
    program = (
        "import socket, sys\n"
        "def refuse(*_): raise SystemExit('a connection')\n"
        "sys.addaudithook(lambda event, _: refuse() if event.startswith('socket.connect') else None)\n"
        "from channels.telegram.formatting import render\n"
        "render('```mermaid\\ngraph TD; A-->B\\n```\\n\\n$\\\\frac{a}{b}$ ![x](https://a.example/p.png)')\n"
        "print(sorted({'telegram', 'aiohttp', 'httpx', 'PIL', 'discord'} & set(sys.modules)))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.strip() == "[]", done.stderr


UNITS = {
    "empty fences": "~~~\n",
    "blank fences": "```\n\n```\n",
    "fences in a list": "- ~~~\n  ~~~\n",
    "fences in a quote": "> ~~~\n> ~~~\n\n",
    "bold between code": "a `b` **c** ",
    "quotes": "> a\n\n",
    "headings": "# a\n",
    "rules": "---\n\n",
    "items": "- a\n",
    "breaks": "a  \n",
    "bars in tables": "|a||b|\n|-|-|-|\n\n",
    "spoilers": "||a|| ",
    "strikes": "~a~ ",
    "prices": "$1 $2 ",
    "links": "[a](https://a.example) ",
    "references": "[a]: https://a.example\n\n[a]\n\n",
    "brackets": "[",
    "stars": "*",
    "backticks": "` ",
    "formulas": "$x$ ",
    "openings": r"\[ ",
    "tags": "<a>",
    "definitions": "[a]: b\n",
    "html": "<div>\n",
    "images": "![[",
    "emphasis": "_a*",
    "one word": "\U0001f600",
}
ITEMS = "".join("  " * n + "- a\n" for n in range(200))


def work_of(task: Callable[[], object]) -> int:
    """Count the lines of Python that a task runs, which do not depend on how busy the machine is."""
    count = 0

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        task()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_twice_the_text_is_about_twice_the_work(unit: str) -> None:
    small, large = (unit * (size // len(unit)) for size in (3_000, 12_000))
    render(unit)

    ratio = work_of(lambda: render(large)) / work_of(lambda: render(small))

    # Four times the text: 4 where the work is linear, 16 where it is quadratic.
    assert ratio < 8


@pytest.mark.slow
@pytest.mark.parametrize("unit", [*UNITS.values(), ITEMS], ids=[*UNITS, "items in items"])
def test_more_than_a_block_of_anything_is_rendered_soon(unit: str) -> None:
    """What is longer goes by parts and blocks, each no longer than these."""
    text = unit * (MAX_BLOCK_BYTES * 3 // 2 // len(unit))
    began = time.process_time()

    pieces = render(text)

    assert pieces
    assert time.process_time() - began < 10


def test_bars_far_apart_in_tables_are_no_spoiler() -> None:
    """Between them, a search for a spoiler would try two ways a line: 40 lines would take it days."""
    text = "> |a||\n> |-|-|\n" + "> \n" * 40 + "> x\n>\n> |b||\n> |-|-|\n"
    program = (
        f"from channels.telegram.formatting import render; print([one.plain for one in render({text!r})])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "a" in done.stdout
    assert "b" in done.stdout
    assert "spoiler" not in done.stdout


def test_a_long_text_keeps_its_form_and_its_words() -> None:
    block = "# Head\n\nSome **bold** words and `code`.\n\n```python\nx = 1\n```\n\n- one\n- two\n\n"
    number = 2 * PART_BYTES // len(block) + 2
    (short,) = render(block)

    long = render(block * number)

    kinds = [entity["type"] for piece in long for entity in piece.markup or ()]
    assert kinds.count("pre") == kinds.count("code") == number
    assert sum(piece.plain.count("Some bold words and code.") for piece in long) == number
    shown = "\n\n".join([short.plain] * number)
    assert "".join("".join(piece.plain.split()) for piece in long) == "".join(shown.split())
    assert [piece.plain for piece in render(block * 2)] == [f"{short.plain}\n\n{short.plain}"]


def test_a_long_piece_of_code_stays_code() -> None:
    pieces = render("# Listing\n\n```python\n" + "x = 1\n" * (MAX_BLOCK_BYTES // 3) + "```\n\nThat is *all*.")

    kinds = [[entity["type"] for entity in piece.markup or ()] for piece in pieces]
    assert all("pre" in inner for inner in kinds[1:-1])
    assert (kinds[0][0], kinds[-1][-1]) == ("bold", "italic")


def test_blocks_are_never_torn_and_what_cannot_be_parted_is_sent_as_it_is() -> None:
    paragraph = "word " * 200 + "\n\n"
    found = parts(paragraph * 100)
    one = "> " + "**a** " * (MAX_BLOCK_BYTES // 5)

    assert found is not None
    assert "".join(text for text, _ in found) == paragraph * 100
    assert all(len(text) <= PART_BYTES for text, _ in found)
    assert parts(one) is None
    pieces = render(one)
    assert all(not piece.markup for piece in pieces)
    assert pieces[0].plain.startswith("> **a** **a**")
