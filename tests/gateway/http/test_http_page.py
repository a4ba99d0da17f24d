"""The page's files: small, its own alone, and every word of it in one place."""

from __future__ import annotations

import gzip
import re

from gateway.http.page import TYPES, page_files
from tests.gateway.http_place import Place
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "security",
    "Text from people, models and tools never becomes markup on the page, which contacts no other host.",
)

FILES = {file.name: file for file in page_files()}
SCRIPTS = {name: file.content.decode() for name, file in FILES.items() if name.endswith(".js")}
MAX_PAGE_BYTES = 150_000
# What a namespace is called is no address that anybody asks.
NAMESPACE = "http://www.w3.org/2000/svg"


def test_the_whole_page_is_small() -> None:
    """All its files together, as they go over the wire."""
    assert sum(len(gzip.compress(file.content, 9)) for file in FILES.values()) <= MAX_PAGE_BYTES


async def test_each_file_is_served_packed_once_and_known_again(place: Place) -> None:
    """As gzip where that is taken, and not at all where the browser has it."""
    for file in FILES.values():
        packed = await place.http.get(file.path, headers={"Accept-Encoding": "gzip"})
        plain = await place.http.get(file.path, headers={"Accept-Encoding": "identity"})
        again = await place.http.get(file.path, headers={"If-None-Match": packed.headers["etag"]})

        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content == file.content
        assert packed.headers["content-type"].startswith(TYPES[file.name.rpartition(".")[2]])
        assert (again.status_code, again.content) == (304, b"")


async def test_the_policy_lets_nothing_in(place: Place) -> None:
    """Its own files alone, no markup made of text, no frame around it."""
    for path in ("/", "/page/js/main.js"):
        headers = (await place.http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not any("unsafe" in each or "http" in each or "*" in each for each in policy)


def test_no_file_names_another_host_or_makes_markup() -> None:
    for name, file in FILES.items():
        text = file.content.decode().replace(NAMESPACE, "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}", text), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name
    html = FILES["index.html"].content.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", html)


def test_every_module_is_asked_for_at_once() -> None:
    """A browser that learnt of each module from another one would wait for every step."""
    html = FILES["index.html"].content.decode()
    asked = set(re.findall(r'(?:src|modulepreload" href)="/page/([^"]+\.js)"', html))

    assert asked == set(SCRIPTS)


def test_every_word_of_the_page_stands_in_one_file() -> None:
    """No other module holds a text that a person reads: two words or more that begin with a capital."""
    for name, text in SCRIPTS.items():
        if name == "js/strings.js":
            continue
        code = re.sub(r"//.*", "", text)
        told = [one for one in re.findall(r'"([^"\n]*)"', code) if re.match(r"[A-Z][a-z]+ [a-z]+", one)]
        assert told == [], name


def test_every_string_is_there_and_is_used() -> None:
    """What a module names of the strings exists."""
    strings = SCRIPTS["js/strings.js"]
    for name, text in SCRIPTS.items():
        for group, word in re.findall(r"\bS\.(\w+)\.(\w+)", text):
            assert re.search(rf"\b{group}: \{{", strings), f"{name}: S.{group}"
            assert re.search(rf"\b{word}[:,]", strings), f"{name}: S.{group}.{word}"
