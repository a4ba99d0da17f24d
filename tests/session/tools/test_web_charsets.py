"""A server names the charset of a page: what it names is read where it is one, and never what takes long."""

from __future__ import annotations

import codecs
import time

import pytest

from session.tools.web.addresses import target_of
from session.tools.web.extraction import CHARSETS, charset_of, text_of
from session.tools.web.fetching import Page

CRAFTED = ("a" * 60_000 + "😀").encode("punycode") + b"a" * 60_000


def page(data: bytes, charset: str, kind: str = "text/plain") -> Page:
    return Page(target_of("http://example.test/"), kind, charset, data, cut=False)


@pytest.mark.parametrize(
    ("charset", "data", "text"),
    [
        ("UTF8", "grüße".encode(), "grüße"),
        ("utf-16", "grüße".encode("utf-16"), "grüße"),
        ("ISO-8859-1", "grüße".encode("latin-1"), "grüße"),
        ("windows-1251", "привет".encode("cp1251"), "привет"),
        ("KOI8-R", "привет".encode("koi8-r"), "привет"),
        ("x-sjis", "日本".encode("cp932"), "日本"),
        ("gb2312", "中文".encode("gb2312"), "中文"),
        ("euc-kr", "한국".encode("euc-kr"), "한국"),
        ("macintosh", "é".encode("mac-roman"), "é"),
        ("utf-8", "grüße".encode("latin-1"), "gr\ufffd\ufffde"),
    ],
)
async def test_a_charset_of_the_web_is_read(charset: str, data: bytes, text: str) -> None:
    assert (await text_of(page(data, charset))).text == text


@pytest.mark.parametrize(
    "charset",
    [
        "",
        "idna",
        "undefined",
        "unicode_escape",
        "raw_unicode_escape",
        "utf-7",
        "rot13",
        "hex",
        "a\0b",
        "ü",
        "../x",
    ],
)
async def test_any_other_is_read_as_utf_8(charset: str) -> None:
    assert (await text_of(page("\\ud800 +AGE- grüße".encode(), charset))).text == "\\ud800 +AGE- grüße"


async def test_one_that_takes_longer_than_a_page_is_long_is_not_read() -> None:
    """Python's own punycode takes a time that is quadratic, and the loop would stand still for it."""
    began = time.process_time()
    text = await text_of(page(CRAFTED, "punycode"))

    assert text.text.startswith("aaa")
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "a\0b"])
async def test_a_page_in_html_is_read_all_the_same(charset: str) -> None:
    html = b"<html><body><p>The first ferry leaves at seven.</p></body></html>"

    assert "The first ferry" in (await text_of(page(html, charset, "text/html"))).text


@pytest.mark.parametrize("charset", sorted(CHARSETS))
def test_each_is_known_by_its_own_name_and_takes_no_time(charset: str) -> None:
    assert codecs.lookup(charset).name == charset == charset_of(charset)
    for byte in (b"\xff", b"\x81", b"\x1b$B", b"a"):
        began = time.process_time()
        (byte * (2**19 // len(byte))).decode(charset, "replace")
        assert time.process_time() - began < 1.5
