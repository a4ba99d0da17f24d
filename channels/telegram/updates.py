"""Reads a raw Telegram update as an Arrival, or says why there is none; pure, knows no client."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from channels.base import Arrival, File, FileKind, Quote
from channels.message import Sender, id_number
from channels.text import utf16_len

Raw = Mapping[str, Any]

# Telegram nests blocks up to 16 deep; what is deeper is left out.
_MAX_DEPTH: Final = 40
_MARKS: Final = {"bold": "**", "italic": "*", "strikethrough": "~~", "code": "`"}
# What people see of a block or a piece of text whose kind is not known stands in these fields.
_VISIBLE: Final = ("label", "summary", "title", "text", "button", "alternative_text", "expression", "credit")
_TARGETS: Final = ("url", "email_address", "phone_number")
_QUOTES: Final = ("blockquote", "expandable_blockquote")
_MEDIA: Final = ("photo", "animation", "video", "audio", "voice_note", "document")


def words_of(message: Raw) -> str:
    """Return what a message says in words: its text or caption, or its rich blocks as Markdown."""
    if message.get("rich_message"):
        return _blocks(message["rich_message"].get("blocks"), 0)
    text = message.get("text") or message.get("caption") or ""
    return with_entities(text, message.get("entities") or message.get("caption_entities") or ())


def with_entities(text: str, entities: Iterable[Raw]) -> str:
    """Write as Markdown what the words alone do not say; offsets are UTF-16 units.

    Quotes, code, what is struck out, and in brackets the addresses and dates behind words.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    before, behind = defaultdict[int, str](str), defaultdict[int, str](str)
    found = [(each, int(each["offset"]), int(each["offset"]) + int(each["length"])) for each in entities]
    quotes = [(start, stop) for each, start, stop in found if each["type"] in _QUOTES]
    for start, stop in quotes:
        at, before[start] = start, _gap(units, start - 1)
        for line in _between(units, start, stop).rstrip("\n").split("\n"):
            before[at] += "> "
            at += utf16_len(line) + 1
    # A link that another mark cuts in two comes as two links to one address.
    links = {(start, each.get("url")) for each, start, _ in found if each["type"] == "text_link"}
    for entity, start, stop in found:
        words, url = _between(units, start, stop), entity.get("url")
        match entity["type"]:
            case "text_link" if url and (stop, url) not in links:
                behind[stop] += _address(words, str(url))
            case "date_time":
                behind[stop] += f" ({moment(entity['unix_time'])})"
            case "strikethrough" if words.strip():
                before[start] += "~~"
                behind[stop] = f"~~{behind[stop]}"
            case "pre":
                row = "\n> " if any(first <= start < last for first, last in quotes) else "\n"
                before[start] += f"{_gap(units, start - 1)}{_fence(words)}{entity.get('language') or ''}{row}"
                behind[stop] += f"{row}{_fence(words)}{_gap(units, stop)}"
    for _, stop in quotes:
        behind[stop] += _gap(units, stop)
    pieces, at = [], 0
    for cut in sorted({*before, *behind}):
        pieces += [_between(units, at, cut), behind[cut], before[cut]]
        at = cut
    return "".join([*pieces, _between(units, at, len(units) // 2)])


def names_in(text: str) -> Iterator[str]:
    """Yield the user names that a text mentions, without their @."""
    return (found[1] for found in re.finditer(r"(?<![\w@])@(\w{1,64})", text))


def inner(value: object, depth: int = 0) -> Iterator[Raw]:
    """Yield all objects within the blocks of a rich message, the outer ones first."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from inner(each, depth + 1)


def media_of(message: Raw) -> Iterator[Raw]:
    """Yield the blocks of a rich message that hold files, each in the form of a message with that file."""
    found = inner(message.get("rich_message") or {})
    return (each for each in found if any(isinstance(each.get(field), (Mapping, list)) for field in _MEDIA))


def _between(units: bytes, start: int, stop: int) -> str:
    return units[2 * start : 2 * stop].decode("utf-16-le", "surrogatepass")


def _gap(units: bytes, beside: int) -> str:
    """Return the line break that a block lacks towards the unit beside it."""
    return "" if beside < 0 or _between(units, beside, beside + 1) in ("", "\n") else "\n"


def _fence(code: str) -> str:
    return "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`{3,}", code))])


def moment(unix_time: int) -> str:
    """Write an instant to the minute."""
    return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M UTC}"


def _address(words: str, url: str) -> str:
    bare = url.removeprefix("https://").removeprefix("http://").removeprefix("mailto:").rstrip("/")
    return "" if words.strip().rstrip("/") in (url.rstrip("/"), bare) else f" ({url})"


def _blocks(blocks: object, depth: int) -> str:
    found = (_block(each, depth + 1) for each in blocks) if isinstance(blocks, list) else ()
    return "\n\n".join(text for each in found if (text := each.strip("\n")).strip())


def _block(block: object, depth: int) -> str:
    """Write one block as Markdown; of an unknown one all that people see of it."""
    if depth > _MAX_DEPTH:
        return ""
    if not isinstance(block, Mapping) or isinstance(block.get("url"), str):
        return _inline(block, depth)
    kind, text = block.get("type"), _inline(block.get("text"), depth)
    match kind:
        case "heading":
            size = block.get("size")
            return f"{'#' * (size if type(size) is int and 1 <= size <= 6 else 3)} {text}"
        case "pre":
            code = _plain(block.get("text"), depth)
            return f"{_fence(code)}{block.get('language') or ''}\n{code}\n{_fence(code)}"
        case "divider":
            return "---"
        case "list":
            items = block.get("items")
            return "\n".join(_item(item, depth) for item in items) if isinstance(items, list) else ""
        case "table":
            return "\n".join(filter(None, (_table(block.get("cells"), depth), _visible(block, depth))))
        case "blockquote" | "expandable_blockquote" | "pullquote":
            return "\n".join(f"> {row}".rstrip() for row in _visible(block, depth).splitlines())
        case "map":
            place = block.get("location") or {}
            named = f"[location {place.get('latitude')}, {place.get('longitude')}]"
            return "\n".join(filter(None, (named, _visible(block, depth))))
    return _visible(block, depth)


def _visible(block: Raw, depth: int) -> str:
    """Write what people see of any block: its own words, then the blocks in it, then its caption."""
    words = [_inline(block.get(field), depth) for field in _VISIBLE if field != "credit"]
    known = {*_VISIBLE, *_MEDIA, "type", "caption", "cells"}
    nested = [value for name, value in block.items() if name not in known and isinstance(value, (list, dict))]
    within = [_blocks(each if isinstance(each, list) else [each], depth) for each in nested]
    caption = block.get("caption")
    below = _visible(caption, depth + 1) if isinstance(caption, Mapping) else _inline(caption, depth)
    credit = _inline(block.get("credit"), depth)
    return "\n\n".join(filter(str.strip, [*words, *within, below, credit and f"— {credit}"]))


def _item(item: object, depth: int) -> str:
    if not isinstance(item, Mapping):
        return f"- {_inline(item, depth)}"
    label = str(item.get("label") or "-")
    label = "-" if label in ("•", "◦", "▪", "*") else label
    box = f"[{'x' if item.get('is_checked') else ' '}] " if item.get("has_checkbox") else ""
    rows = _visible({**item, "label": ""}, depth + 1).splitlines() or [""]
    indent = " " * (len(label) + 1)
    return "\n".join([f"{label} {box}{rows[0]}", *(f"{indent}{row}".rstrip() for row in rows[1:])])


def _table(cells: object, depth: int) -> str:
    rows = [
        [" ".join(_cell(cell, depth).split()).replace("|", "\\|") for cell in row]
        for row in (cells if isinstance(cells, list) else ())
        if isinstance(row, list)
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[:1], f"|{' --- |' * max(map(len, rows))}", *lines[1:]]) if rows else ""


def _cell(cell: object, depth: int) -> str:
    return _visible(cell, depth + 1) if isinstance(cell, Mapping) else _inline(cell, depth)


def _inline(text: object, depth: int) -> str:
    """Write a rich text as Markdown: a string, a list of pieces, or a piece with its type."""
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(text, list):
        return "".join(_inline(each, depth + 1) for each in text)
    if not isinstance(text, Mapping):
        return text if isinstance(text, str) else ""
    words = "".join(_inline(text.get(field), depth + 1) for field in _VISIBLE)
    kind, targets = text.get("type"), (text.get(field) for field in _TARGETS)
    behind = "".join(_address(words, target) for target in targets if isinstance(target, str) and target)
    if kind == "date_time":
        behind = f" ({moment(text['unix_time'])})"
    if kind == "code":
        words = _plain(text.get("text"), depth)
    mark = _MARKS.get(str(kind), "") if words.strip() else ""
    return f"{mark}{words}{mark}{behind}"


def _plain(text: object, depth: int) -> str:
    """Return the words of a rich text without any marks, as code has them."""
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(text, list):
        return "".join(_plain(each, depth + 1) for each in text)
    if isinstance(text, Mapping):
        return "".join(_plain(text.get(field), depth + 1) for field in _VISIBLE)
    return text if isinstance(text, str) else ""


# What Telegram itself writes into a chat: nobody said anything.
_SERVICE: Final = frozenset(
    {
        "boost_added",
        "channel_chat_created",
        "chat_background_set",
        "chat_owner_changed",
        "chat_owner_left",
        "chat_shared",
        "checklist_tasks_added",
        "checklist_tasks_done",
        "community_chat_added",
        "community_chat_joined",
        "community_chat_removed",
        "connected_website",
        "delete_chat_photo",
        "direct_message_price_changed",
        "forum_topic_closed",
        "forum_topic_created",
        "forum_topic_edited",
        "forum_topic_reopened",
        "general_forum_topic_hidden",
        "general_forum_topic_unhidden",
        "gift",
        "gift_upgrade_sent",
        "giveaway_completed",
        "giveaway_created",
        "group_chat_created",
        "left_chat_member",
        "managed_bot_created",
        "message_auto_delete_timer_changed",
        "new_chat_members",
        "new_chat_photo",
        "new_chat_title",
        "paid_message_price_changed",
        "passport_data",
        "pinned_message",
        "poll_option_added",
        "poll_option_deleted",
        "proximity_alert_triggered",
        "refunded_payment",
        "successful_payment",
        "suggested_post_approval_failed",
        "suggested_post_approved",
        "suggested_post_declined",
        "suggested_post_paid",
        "suggested_post_refunded",
        "supergroup_chat_created",
        "unique_gift",
        "user_shared",
        "users_shared",
        "video_chat_ended",
        "video_chat_participants_invited",
        "video_chat_scheduled",
        "video_chat_started",
        "write_access_allowed",
    }
)


def is_service(message: Raw) -> bool:
    """Say whether Telegram wrote the message itself: a join, a pin, a new title."""
    return not _SERVICE.isdisjoint(message)


def describe(message: Raw) -> str:
    """Return a line such as ``[sticker 😀]``, then the addresses of buttons; empty where there is neither."""
    said = next((words(message[field]) for field, words in _WORDS.items() if message.get(field)), "")
    keyboard = (message.get("reply_markup") or {}).get("inline_keyboard") or ()
    buttons = [f"button {each['text']}: {each['url']}" for row in keyboard for each in row if each.get("url")]
    return "\n".join(f"[{' '.join(each.split())}]" for each in (said, *buttons) if each)


def held_media(message: Raw) -> Iterator[Raw]:
    """Yield paid media and the media of a poll, each in the form of a message with that file."""
    yield from (message.get("paid_media") or {}).get("paid_media") or ()
    poll = message.get("poll") or {}
    yield from filter(None, (each.get("media") for each in (poll, *(poll.get("options") or ()))))


def part_answered(message: Raw, source: Raw) -> str:
    """Return the task or poll option that a message replies to; empty where it replies to the whole."""
    task, option = message.get("reply_to_checklist_task_id"), message.get("reply_to_poll_option_id")
    checklist, poll = source.get("checklist") or {}, source.get("poll") or {}
    parts = [
        f"{checklist['title']}: {_task(each)}" for each in checklist.get("tasks", ()) if each["id"] == task
    ]
    options = poll.get("options", ()) if option else ()
    parts += [
        f"{poll['question']}: {_option(each)}" for each in options if each.get("persistent_id") == option
    ]
    return next(iter(parts), "")


def _sticker(sticker: Raw) -> str:
    return f"sticker {sticker.get('emoji') or sticker.get('set_name') or ''}"


def _location(location: Raw) -> str:
    return f"location {location['latitude']}, {location['longitude']}"


def _venue(venue: Raw) -> str:
    place = venue["location"]
    return f"place {venue['title']}, {venue['address']}, {place['latitude']}, {place['longitude']}"


def _contact(contact: Raw) -> str:
    name = " ".join(filter(None, (contact.get("first_name"), contact.get("last_name"))))
    more = _VCARD.findall(contact.get("vcard") or "")
    return ", ".join([f"contact {name}", contact["phone_number"], *more])


def _poll(poll: Raw) -> str:
    right = poll.get("correct_option_ids") or ()
    correct = " / ".join(each["text"] for number, each in enumerate(poll["options"]) if number in right)
    kind, options = "quiz" if poll.get("type") == "quiz" else "poll", map(_option, poll["options"])
    notes = (
        f"{kind} {poll['question']}: {' / '.join(options)}",
        "several answers" if poll.get("allows_multiple_answers") else "",
        "closed" if poll.get("is_closed") else "",
        f"correct: {correct}" if correct else "",
        *(
            with_entities(poll.get(field) or "", poll.get(f"{field}_entities") or ())
            for field in ("description", "explanation")
        ),
    )
    return "; ".join(filter(None, notes))


def _option(option: Raw) -> str:
    votes, link = option.get("voter_count"), (option.get("media") or {}).get("link") or {}
    return " ".join(filter(None, (option["text"], link.get("url"), f"({votes})" if votes else "")))


def _checklist(checklist: Raw) -> str:
    return f"checklist {checklist['title']}: {' / '.join(map(_task, checklist['tasks']))}"


def _task(task: Raw) -> str:
    text = with_entities(task["text"], task.get("text_entities") or ())
    return text + (" (done)" if task.get("completion_date") else "")


def _giveaway(giveaway: Raw) -> str:
    prize, at = giveaway.get("prize_description"), giveaway.get("winners_selection_date")
    names = [str(each.get("first_name") or each["id"]) for each in giveaway.get("winners") or ()]
    notes = (prize, f"{giveaway.get('winner_count', 0)} winners", moment(at) if at else "", *names)
    return f"giveaway {', '.join(filter(None, notes))}"


def _titled(kind: str) -> Callable[[Raw], str]:
    return lambda content: f"{kind} {': '.join(filter(None, map(content.get, ('title', 'description'))))}"


def _story(story: Raw) -> str:
    chat = story.get("chat") or {}
    name = chat.get("title") or chat.get("first_name") or chat.get("username")
    return f"story of {name}" if name else "story"


# Of a business card, what is neither the name nor the number: addresses, the firm, notes.
_VCARD: Final = re.compile(
    r"^(?:ADR|BDAY|EMAIL|NOTE|ORG|TITLE|URL)\b[^:\n]*:(\S.*)", re.MULTILINE | re.IGNORECASE
)
_WORDS: Final[dict[str, Callable[[Raw], str]]] = {
    "sticker": _sticker,
    # A venue stands before its location, which comes along.
    "venue": _venue,
    "location": _location,
    "contact": _contact,
    "poll": _poll,
    "dice": lambda dice: f"dice {dice['emoji']} {dice['value']}",
    "checklist": _checklist,
    "game": _titled("game"),
    "invoice": _titled("invoice"),
    "paid_media": lambda _: "paid media",
    "story": _story,
    "giveaway": _giveaway,
    "giveaway_winners": _giveaway,
    "web_app_data": lambda data: f"web app data: {data['data']}",
}


Fetch = Callable[[str], AsyncIterator[bytes]]

_MESSAGES: Final = ("message", "edited_message", "channel_post", "edited_channel_post")
# In an Arrival's meta: the press that the presser may be answered through.
PRESS: Final = "press"
ALLOWED: Final = (*_MESSAGES, "callback_query")

# In UTF-16 code units, as Telegram counts.
_MAX_TEXT: Final = 4_096
_CHAT: Final = re.compile(r"(-?[0-9]+|@[A-Za-z0-9_]+)(?::topic:([0-9]+))?")
_FAULTS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, OSError)
_UNREADABLE: Final = "[a message that cannot be read]"
_ADDRESSED: Final = re.compile(r"(/[A-Za-z0-9_]+)@([A-Za-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class TelegramBot:
    """Who the bot is, as Telegram says; ``username`` is without its @."""

    id: int
    username: str


@dataclass(frozen=True, slots=True)
class SkippedUpdate:
    """Why an update is no Arrival; ``strange`` where nobody foresaw its shape."""

    kind: str
    reason: str
    strange: bool = False


def read(update: Raw, me: TelegramBot, fetch: Fetch) -> Arrival | SkippedUpdate:
    """Read one update; never raises, whatever its shape.

    ``fetch`` begins the download of a file, given Telegram's ``file_id``.
    """
    kind = kind_of(update)
    try:
        if kind in _MESSAGES:
            return _message(update, kind, me, fetch)
        if kind == "callback_query":
            return _pressed(update, me)
    except _FAULTS as error:
        reason = f"unreadable: {type(error).__name__}"
        if kind in _MESSAGES and not kind.startswith("edited_"):
            return _unreadable(update, kind, me, reason)
        return SkippedUpdate(kind, reason, strange=True)
    return SkippedUpdate(kind, "unknown kind", strange=True)


def _unreadable(update: Raw, kind: str, me: TelegramBot, reason: str) -> Arrival | SkippedUpdate:
    """Read who wrote a message that cannot be understood, and where, so that its chat can be told."""
    try:
        message: Raw = update[kind]
        mentioned = _answers(_replied(message), me)
        return replace(_arrival(update, message, me), mentioned=mentioned, unreadable=reason)
    except _FAULTS:
        return SkippedUpdate(kind, reason, strange=True)


def _arrival(update: Raw, message: Raw, me: TelegramBot) -> Arrival:
    """Read what all arrivals have: who wrote, where and when."""
    group = message["chat"]["type"] != "private"
    return Arrival(
        id=_id(update, me),
        chat_id=_chat_id(message),
        text="",
        platform_id=str(id_number(message["message_id"])),
        sender=_sender(message),
        from_bot=_from_bot(message),
        group=group,
        group_ids=(str(id_number(message["chat"]["id"])),) if group else (),
        sent_at=_instant(message["date"]),
    )


def bots_named(update: Raw) -> set[str]:
    """Return the user names in a message that may be a bot's, in small letters; never raises."""
    try:
        # Behind a command as well, as in /new@name.
        names = re.findall(r"@(\w{1,64})", words_of(update[kind_of(update)]))
        return {name for each in names if (name := each.casefold()).endswith("bot")}
    except _FAULTS:
        return set()


def kind_of(update: Raw) -> str:
    """Name the one field that an update has besides its id."""
    known = [name for name in ALLOWED if name in update]
    names = known or [name for name in update if name != "update_id"]
    return str(names[0])[:40] if names else "empty"


def chat_and_topic(chat_id: str) -> tuple[int | str, int | None]:
    """Take a chat id of a key apart: the chat as Telegram wants it, and the topic in it.

    A group's topic 1 is General, as the links to it show: Telegram finds it by no number, but without one.

    Raises:
        ValueError: it names not a Telegram chat.
    """
    found = _CHAT.fullmatch(chat_id)
    if found is None:
        raise ValueError("not a Telegram chat")
    chat, topic = found.groups()
    thread = int(topic) if topic else None
    if chat.startswith("@"):
        return chat, thread
    return int(chat), None if thread == 1 and chat.startswith("-") else thread


def _message(update: Raw, kind: str, me: TelegramBot, fetch: Fetch) -> Arrival | SkippedUpdate:
    message: Raw = update[kind]
    moved = _moved(update, message, me)
    if moved is not None:
        return moved
    edited = kind.startswith("edited_")
    # All subscribers write under one chat id, in topics that are no forum's: they would be mixed.
    if message.get("direct_messages_topic") or message["chat"].get("is_direct_messages"):
        return SkippedUpdate(kind, "direct messages of a channel")
    if message.get("is_automatic_forward"):
        return SkippedUpdate(kind, "copy of a channel's post")
    if is_service(message):
        return SkippedUpdate(kind, "service message")
    if edited and "location" in message:
        return SkippedUpdate(kind, "live location")
    text, for_us = _addressed(words_of(message), me)
    if for_us is False:
        return SkippedUpdate(kind, "command for another bot")
    files = tuple(_files(message, fetch))
    described = describe(message)
    if not (text.strip() or files or described):
        strange = SkippedUpdate(kind, "unknown content", strange=True)
        return strange if edited else _unreadable(update, kind, me, strange.reason)
    if edited and not (text or described):
        return SkippedUpdate(kind, "edit of a file without a text")
    reply_to, found = _replied(message), _arrival(update, message, me)
    album = message.get("media_group_id")
    return replace(
        found,
        text="\n".join(part for part in (text, described) if part),
        kind="edit" if edited else "message",
        mentioned=bool(for_us) or _names(message, me) or _answers(reply_to, me),
        reply_to=str(id_number(reply_to["message_id"])) if reply_to else None,
        quoted=_quoted(message, me, fetch),
        forwarded_from=_origin(message["forward_origin"]) if message.get("forward_origin") else "",
        part_of=f"telegram:{id_number(message['chat']['id'])}:album:{album}" if album else None,
        # Telegram's programs cut a long text at its last blank line, as far before the limit as half of it.
        long=utf16_len(message.get("text") or "") > _MAX_TEXT // 2,
        sent_at=_instant(message["edit_date"]) if edited and message.get("edit_date") else found.sent_at,
        files=files,
    )


def _moved(update: Raw, message: Raw, me: TelegramBot) -> Arrival | None:
    """A group that became a supergroup says so twice: in the old chat and in the new one."""
    chat = id_number(message["chat"]["id"])
    if message.get("migrate_to_chat_id"):
        old, new = chat, id_number(message["migrate_to_chat_id"])
    elif message.get("migrate_from_chat_id"):
        old, new = id_number(message["migrate_from_chat_id"]), chat
    else:
        return None
    return Arrival(
        id=_id(update, me),
        chat_id=str(new),
        text="",
        platform_id=str(id_number(message["message_id"])),
        sender=_sender(message),
        group=True,
        group_ids=(str(new), str(old)),
        sent_at=_instant(message["date"]),
        moved_from=str(old),
    )


def _pressed(update: Raw, me: TelegramBot) -> Arrival | SkippedUpdate:
    query: Raw = update["callback_query"]
    message = query.get("message")
    if not message or not str(query.get("data") or "").strip():
        return SkippedUpdate("callback_query", "no message of a chat, or no value")
    group = message["chat"]["type"] != "private"
    return Arrival(
        id=_id(update, me),
        chat_id=_chat_id(message),
        text=str(query["data"]),
        kind="action",
        platform_id=str(id_number(message["message_id"])),
        sender=_person(query["from"]),
        from_bot=bool(query["from"].get("is_bot")),
        group=group,
        group_ids=(str(id_number(message["chat"]["id"])),) if group else (),
        mentioned=True,
        meta={PRESS: str(query["id"])},
    )


def _id(update: Raw, me: TelegramBot) -> str:
    return f"telegram:{me.id}:{id_number(update['update_id'])}"


def _chat_id(message: Raw) -> str:
    chat = id_number(message["chat"]["id"])
    if message.get("is_topic_message"):
        return f"{chat}:topic:{id_number(message['message_thread_id'])}"
    return str(chat)


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _sender(message: Raw) -> Sender:
    """Say who wrote; for a channel, and for an administrator who shows the group's name, that is the chat."""
    chat = message.get("sender_chat") or (None if message.get("from") else message["chat"])
    if chat is None:
        return _person(message["from"])
    name = chat.get("title") or chat.get("first_name") or ""
    return Sender(id=str(id_number(chat["id"])), name=str(name), username=str(chat.get("username") or ""))


def _person(user: Raw) -> Sender:
    names = (str(user.get("first_name") or ""), str(user.get("last_name") or ""))
    return Sender(
        id=str(id_number(user["id"])),
        name=" ".join(filter(None, names)),
        username=str(user.get("username") or ""),
    )


def _from_bot(message: Raw) -> bool:
    """Say whether a program wrote; what people write in a chat's name carries a bot of Telegram's own."""
    return not message.get("sender_chat") and bool((message.get("from") or {}).get("is_bot"))


def _addressed(text: str, me: TelegramBot) -> tuple[str, bool | None]:
    """Take the bot's name off a command; say whether it is for us, None where it names nobody."""
    text = re.sub(rf"\A\s*@{re.escape(me.username)}[,:]?\s+(?=/)", "", text, flags=re.IGNORECASE)
    found = _ADDRESSED.match(text)
    if found is None:
        return text, None
    command, name = found.groups()
    return command + text[found.end() :], name.casefold() == me.username.casefold()


def _names(message: Raw, me: TelegramBot) -> bool:
    """Say whether an entity is the bot's whole @username, or points at the bot."""
    if message.get("rich_message"):
        users = (
            each["user"] for each in inner(message["rich_message"]) if each.get("type") == "text_mention"
        )
        return any(user["id"] == me.id for user in users) or me.username.casefold() in map(
            str.casefold, names_in(words_of(message))
        )
    text = str(message.get("text") or message.get("caption") or "")
    units = text.encode("utf-16-le", "surrogatepass")
    for entity in message.get("entities") or message.get("caption_entities") or ():
        if entity["type"] == "text_mention" and entity["user"]["id"] == me.id:
            return True
        if entity["type"] == "mention":
            start, length = int(entity["offset"]), int(entity["length"])
            named = units[2 * start : 2 * (start + length)].decode("utf-16-le", "replace")
            if named.casefold() == f"@{me.username}".casefold():
                return True
    return False


def _replied(message: Raw) -> Raw | None:
    """Return the message that this one answers; within a topic, its opening is none."""
    replied: Raw | None = message.get("reply_to_message")
    if not replied or "forum_topic_created" in replied:
        return None
    return replied


def _quoted(message: Raw, me: TelegramBot, fetch: Fetch) -> Quote | None:
    """Read what a message replies to, in its chat or in another one; the marked part where one is marked."""
    try:
        replied, part = _replied(message), message.get("quote") or {}
        source: Raw = replied or message.get("external_reply") or message.get("reply_to_story") or {}
        if not (source or part):
            return None
        answered = part_answered(message, source)
        marked = answered or with_entities(str(part.get("text") or ""), part.get("entities") or ())
        whole = "\n".join(filter(None, (words_of(source), describe(source))))
        if is_service(source):
            whole = "[service message]"
        elif source is message.get("reply_to_story"):
            whole = describe({"story": source})
        partial = bool(answered or (marked and part.get("is_manual")))
        files = tuple(_files(source, fetch))
        text = (marked if partial else whole or marked) or ("" if files else _UNREADABLE)
        origin = source.get("origin") or source.get("forward_origin")
        number = source.get("message_id")
        return Quote(
            author=_origin(origin) if origin else _author(source),
            text=text,
            message_id=str(id_number(number)) if number is not None else None,
            partial=partial,
            own=_answers(source, me) and not origin,
            files=files,
        )
    except _FAULTS:
        return Quote(text=_UNREADABLE)


def _author(source: Raw) -> str:
    if not any(source.get(field) for field in ("from", "sender_chat", "chat")):
        return ""
    sender = _sender(source)
    return sender.name or sender.username


def _origin(origin: Raw) -> str:
    """Name who wrote a message first: a person, one who is hidden, a group or a channel."""
    chat = origin.get("sender_chat") or origin.get("chat")
    if origin.get("sender_user"):
        found = _person(origin["sender_user"])
        return found.name or found.username or found.id
    if chat:
        names = (
            chat.get("title") or chat.get("username") or chat.get("first_name"),
            origin.get("author_signature"),
        )
        return ", ".join(str(name) for name in names if name) or "a chat"
    return str(origin.get("sender_user_name") or "somebody")


def _answers(replied: Raw | None, me: TelegramBot) -> bool:
    return bool(replied) and ((replied or {}).get("from") or {}).get("id") == me.id


def _files(message: Raw, fetch: Fetch) -> Iterator[File]:
    for holder in (*media_of(message), *held_media(message)):
        yield from _files(holder, fetch)
    # Of paid media and polls a live photo is not given as a photo as well.
    if photo := message.get("photo") or (message.get("live_photo") or {}).get("photo"):
        # A text by a number would be as many texts.
        largest = max(photo, key=lambda size: int(size.get("width", 0)) * int(size.get("height", 0)))
        yield _file("photo", largest, "image/jpeg", fetch)
    plain: tuple[tuple[str, FileKind, str], ...] = (
        ("animation", "video", "video/mp4"),
        ("video", "video", "video/mp4"),
        ("video_note", "video", "video/mp4"),
        ("voice", "voice", "audio/ogg"),
        ("voice_note", "voice", "audio/ogg"),
        ("audio", "audio", "audio/mpeg"),
        ("document", "document", "application/octet-stream"),
    )
    for field, kind, mime in plain:
        # An animation comes with the same file as a document, for old programs.
        if message.get(field) and not (field == "document" and message.get("animation")):
            yield _file(kind, message[field], mime, fetch)


def _file(kind: FileKind, raw: Raw, mime: str, fetch: Fetch) -> File:
    file_id = str(raw["file_id"])
    size = raw.get("file_size")
    return File(
        kind=kind,
        name=str(raw.get("file_name") or ""),
        mime=str(raw.get("mime_type") or mime),
        size=size if isinstance(size, int) else None,
        fetch=lambda: fetch(file_id),
    )
