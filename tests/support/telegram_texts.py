"""How Telegram's server reads a text: limits, entities and their errors, in its own words."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

from tests.support.telegram_faults import bad_request

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_RAW_BYTES = 2**15
MAX_ENTITIES = 100
KINDS = {
    *("mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number", "bold", "italic"),
    *("underline", "strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre"),
    *("text_link", "text_mention", "custom_emoji"),
}
TAGS = {
    tag: kind
    for kind, tags in {
        "bold": "b strong",
        "italic": "i em",
        "underline": "u ins",
        "strikethrough": "s strike del",
        "spoiler": "tg-spoiler",
        "code": "code",
        "pre": "pre",
        "text_link": "a",
        "blockquote": "blockquote",
    }.items()
    for tag in tags.split()
}
RESERVED = "_*[]()~`>#+-=|{}.!"


def utf16(text: str) -> int:
    """Count UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def read_text(params: dict[str, Any], *, field: str = "text") -> tuple[str, list[dict[str, Any]]]:
    """Return text and entities as the platform takes them, or refuse."""
    raw = params.get(field) or ""
    if not isinstance(raw, str):
        raise bad_request(f'field "{field}" must be of type String')
    if len(raw.encode(errors="surrogatepass")) > MAX_RAW_BYTES:
        raise bad_request("text is too long" if field == "text" else "message caption is too long")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    mode = str(params.get("parse_mode") or "").lower()
    listed = as_json(params.get("entities" if field == "text" else "caption_entities")) or []
    if mode == "html":
        text, entities = read_html(raw)
    elif mode in ("markdown", "markdownv2"):
        text, entities = read_markdown(raw)
    else:
        text, entities = raw, check_entities(raw, listed)
    if field == "text" and not text.strip():
        raise bad_request("message text is empty")
    if utf16(text) > (MAX_TEXT if field == "text" else MAX_CAPTION):
        raise bad_request("message is too long" if field == "text" else "message caption is too long")
    return text, entities


def as_json(value: Any) -> Any:
    """Read what form fields carry as JSON text; leave what a JSON body carries as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise bad_request("object expected as parameter; can't parse JSON") from None


def check_entities(text: str, entities: Any) -> list[dict[str, Any]]:
    """Return the first hundred entities; refuse one that leaves the text or cuts a character in two."""
    if not isinstance(entities, list):
        raise bad_request("can't parse entities: expected an Array of MessageEntity")
    bounds, at = {0}, 0
    for char in text:
        at += 2 if ord(char) > 0xFFFF else 1
        bounds.add(at)
    for entity in entities:
        if not isinstance(entity, dict) or not isinstance(entity.get("type"), str):
            raise bad_request("can't parse MessageEntity: expected an Object")
        offset, length = entity.get("offset"), entity.get("length")
        if not isinstance(offset, int) or not isinstance(length, int):
            raise bad_request('can\'t parse MessageEntity: field "offset" must be a Number')
        if entity["type"] not in KINDS:
            raise bad_request("can't parse MessageEntity: unsupported type specified")
        if offset + length > at or offset < 0 or length < 0:
            raise bad_request(
                f"entity beginning at UTF-16 offset {offset} ends after the end of the text"
                f" at UTF-16 offset {offset + length}"
            )
        if offset not in bounds:
            raise bad_request(f"entity begins in a middle of a UTF-16 symbol at byte offset {offset}")
        if offset + length not in bounds:
            raise bad_request(
                f"entity beginning at UTF-16 offset {offset} ends in a middle of a UTF-16 symbol"
                f" at byte offset {offset + length}"
            )
    return [entity for entity in entities if entity["length"]][:MAX_ENTITIES]


def read_html(raw: str) -> tuple[str, list[dict[str, Any]]]:
    """Read ``parse_mode=HTML``."""
    text, entities, opened, done = "", [], [], 0
    for tag in re.finditer(r"<(/?)([^\s>/]*)([^>]*)>?", raw):
        text += unescape(raw[done : tag.start()])
        done, name, at = tag.end(), tag[2].lower(), len(raw[: tag.start()].encode())
        if not tag[0].endswith(">"):
            raise bad_request(f"can't parse entities: Unclosed start tag at byte offset {at}")
        if tag[1]:
            if not opened:
                raise bad_request(f"can't parse entities: Unexpected end tag at byte offset {at}")
            opening, entity = opened.pop()
            if opening != name:
                raise bad_request(
                    f"can't parse entities: Unmatched end tag at byte offset {at},"
                    f' expected "</{opening}>", found "</{name}>"'
                )
            entity["length"] = utf16(text) - entity["offset"]
            entities.append(entity)
            continue
        if name not in TAGS:
            raise bad_request(f'can\'t parse entities: Unsupported start tag "{name}" at byte offset {at}')
        entity = {"type": TAGS[name], "offset": utf16(text), "length": 0}
        if name == "a" and (link := re.search(r"href=[\"']?([^\"'\s>]*)", tag[3])):
            entity["url"] = link[1]
        opened.append((name, entity))
    if opened:
        raise bad_request(
            f"can't parse entities: Can't find end tag corresponding to start tag \"{opened[-1][0]}\""
        )
    return text + unescape(raw[done:]), [entity for entity in entities if entity["length"]]


def read_markdown(raw: str) -> tuple[str, list[dict[str, Any]]]:
    """Read ``parse_mode=MarkdownV2``: escapes, bold and code; every other reserved character is refused."""
    text, entities, opened, at = "", [], {}, 0
    kinds = {"*": "bold", "_": "italic", "`": "code"}
    while at < len(raw):
        char = raw[at]
        if char == "\\" and raw[at + 1 : at + 2] in RESERVED + "\\":
            text, at = text + raw[at + 1 : at + 2], at + 2
            continue
        if char in kinds:
            if char in opened:
                start = opened.pop(char)
                entities.append({"type": kinds[char], "offset": start, "length": utf16(text) - start})
            else:
                opened[char] = utf16(text)
        elif char in RESERVED:
            raise bad_request(
                f"can't parse entities: Character '{char}' is reserved and must be escaped"
                " with the preceding '\\'"
            )
        else:
            text += char
        at += 1
    if opened:
        kind = kinds[next(iter(opened))].capitalize()
        raise bad_request(
            f"can't parse entities: Can't find end of {kind} entity at byte offset {len(raw.encode())}"
        )
    return text, entities
