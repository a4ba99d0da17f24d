"""Every renderer keeps blocks on lines of their own, and every word and address."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.formatting import discord_markdown
from channels.telegram.formatting import render as telegram
from channels.text import split_markdown
from tests.support.examples import drawn

Render = Callable[[str], str]
ADDRESSES = (
    "https://a.example/pkg/__init__.html",
    "https://a.example/_next/data_/a",
    "https://a.example/q?a*b*c",
    "www.a.example/~a/~b",
    "_a_b_@a.example",
    "pkg/__init__.txt",
    r"E:\work\.cfg\_tmp",
)
# What stands in a block: words, some marked, some beside an address.
MARKED = (
    "{}",
    "**{}**",
    "*{}* it",
    "`{}`",
    "步骤**{}：**打开",
    "~~{}~~",
    "{} {address}",
    "**{}** {address} 。",
)


class Document:
    """Markdown of nested blocks, and what each line-breaking block holds, in order."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.leaves: list[list[str]] = []
        self.markdown = "\n".join(self._blocks(depth=0))

    def _leaf(self, forms: tuple[str, ...] = MARKED) -> str:
        word = f"w{len(self.leaves)}x"
        form = self._draw(st.sampled_from(forms))
        address = self._draw(st.sampled_from(ADDRESSES))
        self.leaves.append([word, address] if "{address}" in form else [word])
        return form.format(word, address=address)

    def _blocks(self, depth: int) -> list[str]:
        lines: list[str] = []
        for number in range(self._draw(st.integers(1, 4))):
            if number and self._draw(st.booleans()):
                lines.append("")
            block = self._block(depth)
            # A paragraph would join what stands before it.
            if lines and lines[-1] and not block[0].startswith(("`", "~", "#", ">")):
                lines.append("")
            lines += block
        return lines

    def _block(self, depth: int) -> list[str]:
        kinds = ["paragraph", "heading", "fence", "table", "rule", "list", "numbers", "quote"]
        match self._draw(st.sampled_from(kinds if depth < 3 else kinds[:4])):
            case "heading":
                return [f"{'#' * self._draw(st.integers(1, 6))} {self._leaf()}", ""]
            case "fence":
                mark = self._draw(st.sampled_from(["```", "~~~", "````"]))
                return [
                    mark + self._draw(st.sampled_from(["", "py"])),
                    self._leaf(("{}", "{} __a__ *b*")),
                    mark,
                ]
            case "table":
                return ["| a | b |", "|---|---|", f"| {self._leaf()} | b |", f"| {self._leaf()} | `c` |", ""]
            case "rule":
                return [self._leaf(), "", "---"]
            case "list":
                return self._items("- ", depth)
            case "numbers":
                return self._items("1. ", depth)
            case "quote":
                return [f"> {line}".rstrip() for line in self._blocks(depth + 1)] + [""]
            case _:
                return [self._leaf()]

    def _items(self, mark: str, depth: int) -> list[str]:
        lines = []
        for _ in range(self._draw(st.integers(1, 3))):
            first, *others = self._blocks(depth + 1)
            lines += [mark + first, *(" " * len(mark) + line if line else "" for line in others)]
        return [*lines, ""]


documents = st.composite(Document)


def on_telegram(markdown: str) -> str:
    return "\n".join(piece.plain for piece in telegram(markdown))


def on_discord(markdown: str) -> str:
    sent = "\n".join(split_markdown(discord_markdown(markdown), 2_000))
    # Discord takes away the backslashes before punctuation, but in code and in the addresses it links.
    kept = r"(?P<kept>(?P<ticks>`+).*?(?P=ticks)|https?://\S+)"
    return re.sub(
        rf"{kept}|\\([!-/:-@\[-`{{-~])", lambda found: found["kept"] or found[3], sent, flags=re.DOTALL
    )


@pytest.mark.parametrize("render", [on_telegram, on_discord])
def test_blocks_stand_apart_and_nothing_is_lost(render: Render) -> None:
    @drawn(300)
    @given(documents())
    def holds(document: Document) -> None:
        shown = render(document.markdown)

        at = 0
        for number, leaf in enumerate(document.leaves):
            place = shown.find(leaf[0], at)
            assert place >= 0, (leaf, shown)
            assert number == 0 or "\n" in shown[at:place], (leaf, shown)
            at = place + len(leaf[0])
            for address in leaf[1:]:
                found = shown.find(address, at)
                assert found >= 0, (address, shown)
                assert "\n" not in shown[at:found]
                at = found + len(address)

    holds()


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("| a | b |\n|---|:-:|\n| 你 | [c](d.e) |", "```\na  | b\n---+---------\n你 | [c](d.e)\n```"),
        ("| a |\n|---|\n| `b\\|c` | d | e |\nf", "```\na\n-----------\nb|c | d | e\nf\n```"),
        ("> | a |\n> |---|\n> | **b** |\n\nc", "> ```\n> a\n> -\n> b\n> ```\n\nc"),
        ("- [ ] a\n- [x] b", "- ☐ a\n- ☑ b"),
        ("a\n\n---\n\n#### b **c** ##\n\n### d", "a\n\n────────────\n\n**b c**\n\n### d"),
        ("A\nb\n===\n\nC\n---", "# A b\n\n## C"),
        ("![a](https://b.example) ![](https://c.example)", "[a](https://b.example) https://c.example"),
        ("[![a](https://b.example)](https://c.example)", "[a](https://c.example) <https://b.example>"),
        ("~~~py\n---\n- [ ] a\n~~~", "```py\n---\n- [ ] a\n```"),
        ("````md\n| a |\n|---|\n````", "```md\n| a |\n|---|\n```"),
        ("~~~\n```\na\n```\n~~~", "~~~\n```\na\n```\n~~~"),
        ("`- [ ] a` and `| a |`\n\n    ---\n    #### a", "`- [ ] a` and `| a |`\n\n    ---\n    #### a"),
        ("~~~\nunclosed", "```\nunclosed"),
        ("a/__init__.py, 2*3 `2*3` https://a.b/_c_/你/_d_", r"a/\_\_init\_\_.py, 2\*3 `2*3` https://a.b/_c_/你/_d_"),
        ("a.__b__ and c.__d__, **e/f_g**, h/_i_", r"a.\_\_b\_\_ and c.\_\_d\_\_, **e/f_g**, h/\_i_"),
        (r"C:\_a \\b\c .\_d", r"C:\\\_a \\\\b\\c .\\\_d"),
        ("if a || b: `c || d` || e, ||f||", r"if a \|\| b: `c || d` \|\| e, ||f||"),
        ("a&copy;b &lt;c&gt; &amp; & `&lt;`", r"a©b \<c\> \& & `&lt;`"),
        ("&nbsp;", "&nbsp;"),
        ("| a | b |\n|---|---|\n| `c | d` | `e||f` |", "```\na     | b\n------+-----\nc | d | e||f\n```"),
    ],
)  # fmt: skip
def test_discord_gets_what_it_renders(markdown: str, shown: str) -> None:
    assert discord_markdown(markdown) == shown
