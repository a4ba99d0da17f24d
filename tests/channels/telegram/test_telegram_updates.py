"""What an update of Telegram means: who wrote what, where, and to whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from channels.base import Arrival
from channels.telegram.updates import SkippedUpdate, TelegramBot, bots_named, chat_and_topic, kind_of, read

ME = TelegramBot(id=42, username="Gate_Bot")
ADA = {"id": 7, "is_bot": False, "first_name": "Ada", "last_name": "King", "username": "ada"}
SMALL = {"file_id": "s", "width": 9, "height": 6, "file_size": 5}
LARGE = {"file_id": "l", "width": 90, "height": 60, "file_size": 50}
MIDDLE = {"file_id": "m", "width": 30, "height": 20}
PDF = {"file_id": "d", "file_name": "a.pdf", "mime_type": "application/pdf", "file_size": 3}
PACK = {"id": 2, "text": "Pack"}
LINK = {"url": "https://a.b"}
GROUP = {"id": -5, "type": "group", "title": "Us"}


async def fetch(file_id: str) -> AsyncIterator[bytes]:
    yield file_id.encode()


def message(**fields: Any) -> dict[str, Any]:
    base = {"message_id": 3, "date": 1_700_000_000, "chat": {"id": 7, "type": "private"}, "from": ADA}
    return base | fields


def update(kind: str = "message", **fields: Any) -> dict[str, Any]:
    return {"update_id": 900, kind: message(**fields)}


def arrived(kind: str = "message", **fields: Any) -> Arrival:
    found = read(update(kind, **fields), ME, fetch)
    assert isinstance(found, Arrival), found
    return found


def entity(kind: str, text: str, part: str) -> dict[str, Any]:
    offset = len(text[: text.index(part)].encode("utf-16-le")) // 2
    return {"type": kind, "offset": offset, "length": len(part.encode("utf-16-le")) // 2}


def test_a_message_in_private() -> None:
    """Every field of a plain message finds its place."""
    found = arrived(text="hello")

    assert found.id == "telegram:42:900"
    assert (found.chat_id, found.text, found.kind, found.platform_id) == ("7", "hello", "message", "3")
    assert found.sender.model_dump() == {"id": "7", "name": "Ada King", "username": "ada"}
    assert (found.group, found.group_ids, found.mentioned, found.from_bot) == (False, (), False, False)
    assert found.sent_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (found.reply_to, found.files, found.moved_from) == (None, (), "")


@pytest.mark.parametrize(("length", "long"), [(2048, False), (2050, True), (4096, True)])
def test_a_text_may_go_on_in_the_next_message_from_half_of_the_limit_on(length: int, long: bool) -> None:
    """Telegram's programs cut a long text at its last blank line in the second half."""
    assert arrived(text="😀" * (length // 2)).long is long


def test_an_edit_has_the_id_of_its_message_and_the_time_of_the_edit() -> None:
    """An edit names the message that it changes, and when."""
    found = arrived("edited_message", text="hullo", edit_date=1_700_000_060)

    assert (found.kind, found.platform_id, found.text) == ("edit", "3", "hullo")
    assert found.sent_at == datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)


def test_a_topic_is_part_of_the_chat_id() -> None:
    """Forum topics are chats of their own, and take themselves apart again."""
    chat = {"id": -100123, "type": "supergroup", "is_forum": True}
    found = arrived(text="x", chat=chat, message_thread_id=5, is_topic_message=True)

    assert found.chat_id == "-100123:topic:5"
    assert found.group_ids == ("-100123",)
    assert chat_and_topic(found.chat_id) == (-100123, 5)
    assert arrived(text="x", chat=chat, message_thread_id=5).chat_id == "-100123"
    # Links to the general topic say 1, and Telegram answers "message thread not found" to that.
    assert chat_and_topic("-100123:topic:1") == (-100123, None)
    assert chat_and_topic("123:topic:1") == (123, 1)


@pytest.mark.parametrize(
    "chat_id", ["", "me", "1:topic:x", "12a", ":topic:5", "1_0", " 1", "1:topic:5:topic:6"]
)
def test_what_is_no_chat_of_telegram(chat_id: str) -> None:
    """An id that Telegram could not know is refused before it is asked."""
    with pytest.raises(ValueError, match="not a Telegram chat"):
        chat_and_topic(chat_id)


def text_mention(user: int) -> dict[str, Any]:
    return {"type": "text_mention", "offset": 0, "length": 4, "user": {"id": user}}


def named(text: str) -> dict[str, Any]:
    part = next(word.rstrip("!") for word in text.split() if word.startswith("@"))
    return {"text": text, "entities": [entity("mention", text, part)]}


@pytest.mark.parametrize(
    ("fields", "mentioned"),
    [
        (named("@gate_bot hello"), True),
        (named("hello @GATE_BOT!"), True),
        (named("😀😀 @Gate_Bot"), True),
        (named("@gate_bot2 hello"), False),
        (named("@gate_bo hello"), False),
        # A name in a link or in code is none, as Telegram itself sees it.
        ({"text": "mail@gate_bot"}, False),
        (
            {"caption": "@gate_bot", "photo": [SMALL], "caption_entities": named("@gate_bot")["entities"]},
            True,
        ),
        ({"text": "Gate", "entities": [text_mention(42)]}, True),
        ({"text": "Else", "entities": [text_mention(43)]}, False),
        ({"text": "x", "reply_to_message": message(message_id=2, **{"from": {"id": 42}})}, True),
        ({"text": "x", "reply_to_message": message(message_id=2)}, False),
    ],
)
def test_who_is_meant_in_a_group(fields: dict[str, Any], mentioned: bool) -> None:
    """The whole name in any case and behind any emoji, the account, and who answers the bot."""
    found = arrived(chat=GROUP, **fields)

    assert found.mentioned is mentioned
    assert found.reply_to == ("2" if "reply_to_message" in fields else None)


def test_names_that_may_be_the_bots_new_one() -> None:
    """After a command, and in a caption, as well."""
    assert bots_named(update(text="/new@New_Bot and @ada")) == {"new_bot"}
    assert bots_named(update(caption="@other_bot")) == {"other_bot"}
    assert bots_named({"update_id": 1, "message": 5}) == set()


def test_the_opening_of_a_topic_is_not_answered_by_all_in_it() -> None:
    """Telegram shows each message of a topic as a reply to its opening, which the bot may have made."""
    opening = message(message_id=5, forum_topic_created={"name": "t"}, **{"from": {"id": 42}})
    chat = {"id": -100123, "type": "supergroup"}
    fields = {"message_thread_id": 5, "is_topic_message": True, "reply_to_message": opening}
    found = arrived(text="x", chat=chat, **fields)

    assert (found.mentioned, found.reply_to) == (False, None)


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("/new", "/new"),
        ("/new@gate_bot", "/new"),
        ("/new@Gate_BOT now and then", "/new now and then"),
        ("say /new@other_bot", "say /new@other_bot"),
    ],
)
def test_a_command_loses_our_name(text: str, read_as: str) -> None:
    """A command is a message whose text begins with a slash, whoever it names."""
    found = arrived(text=text, chat=GROUP)

    assert (found.kind, found.text) == ("message", read_as)
    assert found.mentioned is ("gate_bot" in text.lower())


NEWS = {"id": -1009, "type": "channel", "title": "News", "username": "news"}
ANONYMOUS = {"id": 1087968824, "is_bot": True, "first_name": "Group"}


@pytest.mark.parametrize(
    ("kind", "fields", "sender", "bot"),
    [
        # A channel's posts carry nobody's name.
        ("channel_post", {"chat": NEWS, "sender_chat": NEWS}, ("-1009", "News", "news"), False),
        # Telegram puts a bot of its own in the place of an anonymous administrator.
        ("message", {"chat": GROUP, "sender_chat": GROUP, "from": ANONYMOUS}, ("-5", "Us", ""), False),
        ("message", {"chat": GROUP, "sender_chat": NEWS}, ("-1009", "News", "news"), False),
        ("message", {"from": ADA | {"is_bot": True}}, ("7", "Ada King", "ada"), True),
    ],
)
def test_who_speaks(kind: str, fields: dict[str, Any], sender: tuple[str, ...], bot: bool) -> None:
    found = arrived(kind, text="x", **fields)

    assert (found.sender.id, found.sender.name, found.sender.username or "") == sender
    assert (found.group, found.from_bot) == ("chat" in fields, bot)


def test_a_pressed_button_is_an_action() -> None:
    """Its value is the text, its message the one with the button."""
    pressed = {"id": "q1", "from": ADA, "data": "yes", "message": message(chat=GROUP)}
    found = read({"update_id": 8, "callback_query": pressed}, ME, fetch)

    assert isinstance(found, Arrival)
    assert (found.kind, found.text, found.chat_id, found.platform_id) == ("action", "yes", "-5", "3")
    assert (found.mentioned, found.sent_at, found.sender.id) == (True, None, "7")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"sticker": {"file_id": "s", "emoji": "😀"}}, "[sticker 😀]"),
        ({"sticker": {"file_id": "s"}}, "[sticker]"),
        ({"location": {"latitude": 52.5, "longitude": 13.4}}, "[location 52.5, 13.4]"),
        (
            {
                "location": {"latitude": 1, "longitude": 2},
                "venue": {"title": "Pub", "address": "Lane 1", "location": {"latitude": 1, "longitude": 2}},
            },
            "[place Pub, Lane 1, 1, 2]",
        ),
        ({"contact": {"first_name": "Bob", "phone_number": "+49 1"}}, "[contact Bob, +49 1]"),
        (
            {"poll": {"question": "Tea?", "options": [{"text": "yes"}, {"text": "no"}]}},
            "[poll Tea?: yes / no]",
        ),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[dice 🎲 4]"),
        ({"game": {"title": "Go"}}, "[game Go]"),
        ({"story": {"id": 1}}, "[story]"),
        ({"paid_media": {"star_count": 1}, "caption": "see"}, "see\n[paid media]"),
        (
            {
                "poll": {
                    "question": "Capital?",
                    "options": [{"text": "Rome", "voter_count": 3}, {"text": "Paris", "voter_count": 0}],
                    "type": "quiz",
                    "allows_multiple_answers": True,
                    "is_closed": True,
                    "correct_option_ids": [1],
                    "explanation": "Why",
                    "explanation_entities": [
                        {"type": "text_link", "offset": 0, "length": 3, "url": "https://a.b"}
                    ],
                }
            },
            "[quiz Capital?: Rome (3) / Paris; several answers; closed; correct: Paris; Why (https://a.b)]",
        ),
        (
            {"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": "Buy", "completion_date": 5}, PACK]}},
            "[checklist Trip: Buy (done) / Pack]",
        ),
        (
            {"giveaway": {"prize_description": "a bike", "winner_count": 3, "winners_selection_date": 0}},
            "[giveaway a bike, 3 winners]",
        ),
        (
            {"giveaway_winners": {"winner_count": 1, "winners": [ADA], "winners_selection_date": 60}},
            "[giveaway 1 winners, 1970-01-01 00:01 UTC, Ada]",
        ),
        (
            {
                "contact": {
                    "first_name": "Bob",
                    "phone_number": "+49",
                    "vcard": "VERSION:3\nEMAIL;HOME:b@x.org\nN:B",
                }
            },
            "[contact Bob, +49, b@x.org]",
        ),
        ({"invoice": {"title": "Shoe", "description": "red"}}, "[invoice Shoe: red]"),
        ({"story": {"id": 1, "chat": {"id": 5, "first_name": "Zed"}}}, "[story of Zed]"),
        (
            {"text": "News", "reply_markup": {"inline_keyboard": [[{"text": "More", "url": "https://a.b"}]]}},
            "News\n[button More: https://a.b]",
        ),
    ],
)
def test_what_is_neither_text_nor_file_becomes_a_line(content: dict[str, Any], text: str) -> None:
    """Nothing that somebody sends vanishes in silence."""
    assert arrived(**content).text == text


@pytest.mark.parametrize(
    ("text", "marks", "shown"),
    [
        ("at 5 6", [("strikethrough", "5", {})], "at ~~5~~ 6"),
        ("😀 see it", [("bold", "it", {}), ("text_link", "it", LINK)], "😀 see it (https://a.b)"),
        ("So: I go\nto a Why?", [("blockquote", "I go\nto a", {})], "So: \n> I go\n> to a\n Why?"),
        (
            "I go\nx\nwhy",
            [("expandable_blockquote", "I go\nx", {}), ("pre", "x", {}), ("text_link", "I go", LINK)],
            "> I go (https://a.b)\n> ```\n> x\n> ```\nwhy",
        ),
        ("on Monday", [("date_time", "Monday", {"unix_time": 60})], "on Monday (1970-01-01 00:01 UTC)"),
        ("```\na", [("pre", "```\na", {"language": "md"})], "````md\n```\na\n````"),
    ],
)
def test_what_the_words_alone_do_not_say_is_written(text: str, marks: list[Any], shown: str) -> None:
    """Quotes, code, addresses and dates behind words, and what is struck out."""
    entities = [entity(kind, text, part) | more for kind, part, more in marks]

    assert arrived(text=text, entities=entities).text == shown


def test_what_is_seen_of_rich_blocks_is_written() -> None:
    """Buttons and addresses within the text and below it, and quotes that can be folded."""
    button = {"text": "Docs", "url": "https://a.b"}
    blocks = [
        {"type": "paragraph", "text": ["Press ", {"type": "button", "button": button}]},
        {"type": "buttons", "buttons": [button, {"text": "Buy", "callback_data": "b"}]},
        {"type": "expandable_blockquote", "text": "long", "credit": "Bob"},
        {"type": "paragraph", "text": {"type": "email_address", "text": "us", "email_address": "a@b.c"}},
        {"type": "paragraph", "text": {"type": "date_time", "text": "then", "unix_time": 0}},
    ]
    shown = "Press Docs (https://a.b)|Docs (https://a.b)|Buy|> long\n>\n> — Bob|us (a@b.c)|then (1970-"

    assert "|".join(arrived(rich_message={"blocks": blocks}).text.split("\n\n")).startswith(shown)


@pytest.mark.parametrize(
    ("source", "answered", "text"),
    [
        ({"checklist": {"title": "Trip", "tasks": [PACK]}}, {"reply_to_checklist_task_id": 2}, "Trip: Pack"),
        (
            {"poll": {"question": "When?", "options": [{"persistent_id": "o", "text": "Now"}]}},
            {"reply_to_poll_option_id": "o"},
            "When?: Now",
        ),
    ],
)
def test_a_reply_to_a_task_or_an_option_says_which(
    source: dict[str, Any], answered: dict[str, Any], text: str
) -> None:
    """It is the part that was marked."""
    quoted = arrived(text="why?", reply_to_message=message(message_id=2, **source), **answered).quoted

    assert quoted is not None
    assert (quoted.text, quoted.partial) == (text, True)


@pytest.mark.parametrize(
    "content",
    [
        {"paid_media": {"paid_media": [{"type": "preview"}, {"type": "photo", "photo": [SMALL, LARGE]}]}},
        {"paid_media": {"paid_media": [{"type": "live_photo", "live_photo": {"photo": [LARGE]}}]}},
        {"poll": {"question": "?", "options": [{"text": "a", "media": {"photo": [LARGE]}}]}},
        {"poll": {"question": "?", "options": [], "media": {"photo": [LARGE]}}},
    ],
)
def test_a_picture_within_something_else_is_a_file(content: dict[str, Any]) -> None:
    """Paid media, and what polls show."""
    assert [file.kind for file in arrived(**content).files] == ["photo"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"photo": [SMALL, LARGE, MIDDLE]},
            ("photo", "", "image/jpeg", 50, b"l"),
        ),
        (
            {"document": PDF},
            ("document", "a.pdf", "application/pdf", 3, b"d"),
        ),
        ({"voice": {"file_id": "v", "file_size": 4}}, ("voice", "", "audio/ogg", 4, b"v")),
        ({"audio": {"file_id": "a", "file_name": "x.mp3"}}, ("audio", "x.mp3", "audio/mpeg", None, b"a")),
        ({"video": {"file_id": "w", "mime_type": "video/webm"}}, ("video", "", "video/webm", None, b"w")),
        ({"video_note": {"file_id": "n"}}, ("video", "", "video/mp4", None, b"n")),
        (
            {"animation": {"file_id": "g", "file_name": "g.mp4"}, "document": {"file_id": "g"}},
            ("video", "g.mp4", "video/mp4", None, b"g"),
        ),
    ],
)
async def test_a_file(content: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Every kind of file comes with what Telegram says of it; of a photo the largest; an animation once."""
    (file,) = arrived(caption="look", **content).files
    kind, name, mime, size, body = expected

    assert (file.kind, file.name, file.mime, file.size) == (kind, name, mime, size)
    assert [piece async for piece in file.fetch()] == [body]
    assert arrived(caption="look", **content).text == "look"


DIRECT = {"id": -1009, "type": "supergroup", "title": "News", "is_direct_messages": True}
INLINE = {"id": "q", "from": ADA, "data": "x", "inline_message_id": "i"}
FORWARD: dict[str, Any] = {"chat": GROUP, "sender_chat": NEWS, "text": "hello", "is_automatic_forward": True}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        *(
            (update(text=text, chat=GROUP), "command for another bot")
            for text in ("/new@other_bot", "/new@gate_bot2 x", "/new@gate_bo")
        ),
        *(
            (update(**{field: {"x": 1}}, chat=GROUP), "service message")
            for field in ("new_chat_members", "pinned_message", "video_chat_started", "poll_option_added")
        ),
        # All subscribers of a channel write to it under one chat id: they would read each other's answers.
        *(
            (update(kind, text="hello", chat=DIRECT), "direct messages of a channel")
            for kind in ("message", "edited_message")
        ),
        *((update(kind, **FORWARD), "copy of a channel's post") for kind in ("message", "edited_message")),
        # It changes every few seconds.
        (update("edited_message", location={"latitude": 1, "longitude": 2}), ""),
        (update("edited_message", photo=[SMALL]), ""),
        # A message that was sent inline lies in no chat that could be answered.
        ({"update_id": 8, "callback_query": INLINE}, ""),
    ],
)
def test_what_is_for_nobody_here_is_skipped(raw: dict[str, Any], reason: str) -> None:
    """Nothing strange: no question, or none for this bot."""
    found = read(raw, ME, fetch)

    assert isinstance(found, SkippedUpdate), found
    assert not found.strange
    assert reason in found.reason


def test_an_edited_caption_brings_its_file() -> None:
    """The file is fetched where the edit is the first to address the bot."""
    assert arrived("edited_message", caption="new", photo=[SMALL]).files


@pytest.mark.parametrize(
    "raw",
    [
        {"update_id": 1},
        {"update_id": 1, "brand_new": {}},
        {"update_id": 1, "message": None},
        {"update_id": 1, "message": "text"},
        {"update_id": 1, "message": {}},
        {"update_id": 1, "message": message(brand_new={"x": 1})},
        {"update_id": 1, "message": message(text=5)},
        {"update_id": 1, "message": message(text="x", chat={"id": "nine", "type": "private"})},
        {"update_id": 1, "message": message(text="x", date=10**30)},
        {"update_id": 1, "message": message(text=" \n")},
        {"update_id": 10**400, "message": message(text="x")},
        {"update_id": 1, "message": message(text="x", chat={"id": 2**64, "type": "private"})},
        {"update_id": 1, "message": message(text="x", entities=[{}])},
        {"update_id": 1, "message": message(text="x", **{"from": {"id": None}})},
        {"update_id": 1, "message": message(location={})},
        {"update_id": 1, "message": message(photo=[{}])},
        {"update_id": 1, "message": message(photo=[{"file_id": "a", "width": 2**53, "height": "x"}])},
        {"update_id": 1, "callback_query": {"data": "x", "message": [1]}},
        {"update_id": 1, "callback_query": []},
    ],
)
def test_an_unknown_shape_is_strange_and_never_raises(raw: dict[str, Any]) -> None:
    """Whatever Telegram adds tomorrow is not skipped on purpose: where the chat is known, it is told."""
    found = read(raw, ME, fetch)

    if isinstance(found, Arrival):
        assert (found.chat_id, found.text, found.files) == ("7", "", ())
        assert found.unreadable
    else:
        assert found.strange
        assert found.kind == kind_of(raw)


def test_what_is_nested_without_end_is_cut_and_never_raises() -> None:
    deep: Any = {"type": "paragraph", "text": "bottom"}
    for _ in range(500):
        deep = {"type": "details", "summary": "s", "blocks": [deep]}
    found = read({"update_id": 1, "message": message(rich_message={"blocks": [deep]})}, ME, fetch)

    assert isinstance(found, Arrival)
    assert found.text.startswith("s\n\ns")


def test_an_update_is_named_by_what_it_holds() -> None:
    """A field beside it does not hide what we know."""
    assert kind_of({"update_id": 1, "extra": 1, "message": {}}) == "message"
    assert kind_of({"update_id": 1}) == "empty"
