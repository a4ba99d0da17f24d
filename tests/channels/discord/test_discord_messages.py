"""What a raw message, edit or interaction of Discord means; no client, no server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import Arrival
from channels.discord.messages import (
    DiscordBot,
    Location,
    SkippedMessage,
    instant_of,
    read_deletion,
    read_edit,
    read_interaction,
    read_message,
    snowflake_at,
)
from tests.support.examples import drawn

ME = DiscordBot("100", frozenset({"900"}))
HERE = Location("10", "1")
ADA = {"id": "7", "username": "ada", "global_name": "Ada"}


async def nothing(_: str) -> AsyncIterator[bytes]:
    yield b""


async def echo(url: str) -> AsyncIterator[bytes]:
    yield url.encode()


def raw(content: str = "hello", **more: Any) -> dict[str, Any]:
    message = {"id": "4194304000", "channel_id": "10", "author": ADA, "content": content, "type": 0}
    return message | {"mentions": [], "mention_roles": [], "attachments": []} | more


def arrived(message: dict[str, Any], location: Location = HERE) -> Arrival:
    arrival = read_message(message, ME, location, nothing)
    assert isinstance(arrival, Arrival), arrival
    return arrival


def test_a_message_of_a_server() -> None:
    """Ids, chat, sender, time and group are those of the message."""
    arrival = arrived(raw(member={"nick": "Countess"}))

    assert (arrival.id, arrival.platform_id) == ("discord:4194304000", "4194304000")
    assert (arrival.chat_id, arrival.group, arrival.group_ids) == ("10", True, ("10", "1"))
    assert (arrival.sender.id, arrival.sender.name, arrival.sender.username) == ("7", "Countess", "ada")
    assert arrival.sent_at == datetime(2015, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("location", "group_ids"), [(Location("10"), ()), (Location("12", "1", "10"), ("12", "10", "1"))]
)
def test_a_thread_may_be_allowed_by_its_channel_or_server(
    location: Location, group_ids: tuple[str, ...]
) -> None:
    """The thread's own id comes first; a direct message has no group."""
    arrival = arrived(raw(), location)

    assert (arrival.group, arrival.group_ids) == (bool(group_ids), group_ids)


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        (raw("<@100> hi", mentions=[{"id": "100"}]), True),
        (raw("hi <@100>", mentions=[{"id": "100"}]), True),
        (raw("<@&900> hi", mention_roles=["900"]), True),
        (raw("<@&901> hi", mention_roles=["901"]), False),
        (raw("<@101> hi", mentions=[{"id": "101"}]), False),
        (raw("@everyone", mention_everyone=True), False),
        (raw("hi"), False),
    ],
)
def test_who_is_meant(message: dict[str, Any], meant: bool) -> None:
    """The bot's own name and role count; everyone, other people and other roles do not."""
    assert arrived(message).mentioned is meant


@pytest.mark.parametrize(("author", "meant"), [("100", True), ("7", False)])
def test_an_answer_to_the_bot_is_meant_for_it(author: str, meant: bool) -> None:
    """A reply without a ping counts, and names the message that it answers."""
    reference = {"message_id": "55", "channel_id": "10", "type": 0}
    arrival = arrived(
        raw(type=19, message_reference=reference, referenced_message={"author": {"id": author}})
    )

    assert (arrival.mentioned, arrival.reply_to) == (meant, "55")


@pytest.mark.parametrize(("kind", "text"), [(7, "[service message]"), (0, "[a message that cannot be read]")])
def test_an_answer_to_what_says_nothing(kind: int, text: str) -> None:
    """Discord itself offers to wave at who has just joined."""
    reference, wave = {"message_id": "55", "channel_id": "10"}, [{"name": "Wave"}]
    joined = raw("", type=kind)
    found = raw("", type=19, sticker_items=wave, message_reference=reference, referenced_message=joined)
    quoted = arrived(found).quoted

    assert quoted is not None
    assert (quoted.author, quoted.text) == ("Ada", text)


def test_a_forwarded_message_is_no_answer_and_brings_its_content() -> None:
    """What was forwarded is what was said."""
    shot = {"message": {"content": "far away", "attachments": [attachment("image/png")]}}
    reference = {"message_id": "55", "channel_id": "11", "type": 1}
    arrival = arrived(raw("", message_reference=reference, message_snapshots=[shot]))

    assert (arrival.text, arrival.reply_to, len(arrival.files)) == ("far away", None, 1)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<@100> hi", "hi"),
        ("<@!100>, hi", "hi"),
        ("  <@100>\nhi", "hi"),
        ("<@&900> hi", "hi"),
        ("hi <@100>", "hi <@100>"),
        ("<@1000> hi", "<@1000> hi"),
        ("<@100>", "<@100>"),
        ("<@100> /new", "/new"),
    ],
)
def test_the_bots_name_is_taken_off_the_beginning(text: str, kept: str) -> None:
    """The rest stays as written; a mere name stays, too."""
    assert arrived(raw(text)).text == kept


@pytest.mark.parametrize(
    "more", [{"author": ADA | {"bot": True}}, {"webhook_id": "9"}, {"author": ADA | {"system": True}}]
)
def test_programs_are_marked(more: dict[str, Any]) -> None:
    """Bots, webhooks and Discord itself are no people."""
    assert arrived(raw(**more)).from_bot


@pytest.mark.parametrize(
    "message",
    [
        raw(author={"id": "100", "username": "me", "bot": True}),
        raw(type=7),
        raw(type=6),
    ],
    ids=["own", "join", "pin"],
)
def test_what_nobody_said_is_skipped(message: dict[str, Any]) -> None:
    """Own messages and notes of Discord are no arrivals, and nothing strange."""
    skip = read_message(message, ME, HERE, nothing)

    assert isinstance(skip, SkippedMessage)
    assert not skip.strange


HOOK = {"webhook_id": "9", "author": {"id": "9", "username": "ci", "bot": True}}
COPY = {"url": "https://elsewhere.example/a", "proxy_url": "https://proxy.example/a"}
TEXT = COPY | {"content_type": "text/plain"}
UP = {"type": 10, "content": "Up"}
LOG = {"type": 2, "style": 5, "label": "Log", "url": "https://a.example"}
CHOICE = {"type": 3, "placeholder": "Pick", "options": [{"label": "Red", "description": "warm"}]}
SECTION = {"type": 9, "components": [UP], "accessory": LOG}
GRAPH = {"media": COPY, "description": "graph"}
ROW = {"type": 1, "components": [LOG, CHOICE]}
TEA = {
    "question": {"text": "Tea?"},
    "answers": [
        {"answer_id": 1, "poll_media": {"text": "yes"}},
        {"answer_id": 2, "poll_media": {"emoji": {"name": "no"}}},
    ],
    "allow_multiselect": True,
    "results": {"is_finalized": True, "answer_counts": [{"id": 1, "count": 3}]},
}


@pytest.mark.parametrize(
    ("content", "text", "files"),
    [
        ({"embeds": [{"type": "rich", "image": COPY}]}, "", ["photo"]),
        (
            {"embeds": [{"type": "rich", "author": {"name": "Bob", "url": "https://b"}, "timestamp": "now"}]},
            "Bob (https://b)\nnow",
            [],
        ),
        ({"components": [ROW]}, "Log (https://a.example)\nPick\nRed: warm", []),
        ({"components": [SECTION]}, "Up\nLog (https://a.example)", []),
        ({"components": [{"type": 12, "items": [GRAPH]}]}, "graph", ["photo"]),
        ({"components": [{"type": 13, "name": "log", "file": TEXT}]}, "", ["document"]),
        ({"components": [{"type": 11, "media": COPY, "description": "A logo"}]}, "A logo", []),
        ({"stickers": [{"name": "Wave"}]}, "[sticker: Wave]", []),
        ({"sticker_items": [{"name": "Wave"}]}, "[sticker: Wave]", []),
        ({"poll": {"question": {"text": "Tea?"}}}, "[poll: Tea?]", []),
        ({"poll": TEA}, "[poll: Tea?: yes (3) / no; several answers; closed]", []),
    ],
)  # fmt: skip
async def test_what_people_see_of_a_programs_message_is_read(
    content: dict[str, Any], text: str, files: list[str]
) -> None:
    """Of media Discord's own copy is fetched: the address itself may lead anywhere."""
    arrival = read_message(raw("", **HOOK, **content), ME, HERE, echo)

    assert isinstance(arrival, Arrival)
    assert (arrival.text, [file.kind for file in arrival.files]) == (text, files)
    for file in arrival.files:
        assert [piece async for piece in file.fetch()] == [COPY["proxy_url"].encode()]


def attachment(mime: str | None, **more: Any) -> dict[str, Any]:
    return {"id": "1", "filename": "f", "size": 3, "url": "https://cdn/f", "content_type": mime} | more


@pytest.mark.parametrize(
    ("mime", "flags", "kind"),
    [
        ("image/png", 0, "photo"),
        ("video/mp4", 0, "video"),
        ("audio/mpeg", 0, "audio"),
        ("audio/ogg", 8192, "voice"),
        ("text/plain; charset=utf-8", 0, "document"),
        (None, 0, "document"),
    ],
)
def test_files_have_kinds(mime: str | None, flags: int, kind: str) -> None:
    """The type that Discord names decides; its parameters are dropped."""
    (file,) = arrived(raw("", flags=flags, attachments=[attachment(mime)])).files

    assert (file.kind, file.name, file.size) == (kind, "f", 3)
    assert ";" not in file.mime
    assert file.mime


def test_an_edit_has_an_id_of_its_own() -> None:
    """Two edits of a message are two; the same one again is the same."""
    edits = [
        read_edit(raw("new", edited_timestamp=f"2026-01-02T03:04:05.{ms}000+00:00"), ME, HERE)
        for ms in ("678", "678", "679")
    ]

    ids = [edit.id for edit in edits if isinstance(edit, Arrival)]
    assert ids[0] == ids[1] == "discord:4194304000:e1767323045678"
    assert ids[2] == "discord:4194304000:e1767323045679"
    assert [edit.kind for edit in edits] == ["edit"] * 3


def test_deletions_are_edits_that_say_so() -> None:
    """One or many at once; each has an id of its own, and the id of its message."""
    one = read_deletion({"id": "5", "channel_id": "12"}, HERE, person="7")
    many = read_deletion({"ids": ["5", "6"], "channel_id": "12"}, HERE, person="7")

    assert [each.id for each in many] == ["discord:5:d", "discord:6:d"]
    assert many[0] == one[0]
    assert (one[0].kind, one[0].platform_id, one[0].text, one[0].meta) == ("edit", "5", "", {"deleted": True})
    assert one[0].sender.id == "7"


@pytest.mark.parametrize("event", [{}, {"id": None}, {"ids": 5}, {"ids": ["x"]}, {"ids": [[]]}])
def test_no_shape_of_a_deletion_raises(event: dict[str, Any]) -> None:
    assert read_deletion(event, HERE, person="7") == []


@pytest.mark.parametrize("message", [raw(edited_timestamp=None), {"id": "1", "embeds": []}])
def test_an_unfolded_link_is_no_edit(message: dict[str, Any]) -> None:
    """Discord changes messages itself to show previews."""
    assert isinstance(read_edit(message, ME, HERE), SkippedMessage)


def interaction(**more: Any) -> dict[str, Any]:
    data = {"name": "compact", "type": 1, "options": [{"name": "focus", "type": 3, "value": "the plan"}]}
    event = {"id": "77", "application_id": "100", "type": 2, "token": "tok", "data": data}
    return event | {"channel_id": "12", "user": ADA} | more


def test_a_command_of_the_menu_reads_as_typed() -> None:
    """In a direct channel it comes with its user; its answer goes through the interaction."""
    arrival = read_interaction(interaction(), deferred=True)

    assert isinstance(arrival, Arrival)
    assert (arrival.id, arrival.kind, arrival.text) == ("discord:i77", "command", "/compact the plan")
    assert (arrival.chat_id, arrival.group, arrival.mentioned) == ("12", False, True)
    assert arrival.meta == {"interaction": "tok", "application": "100", "promised": True}


def test_a_command_in_a_thread() -> None:
    """The channel that comes along names the thread's parent; without a promise there is nothing to fill."""
    channel = {"id": "12", "type": 11, "parent_id": "10"}
    event = interaction(guild_id="1", channel=channel, member={"user": ADA, "nick": "Countess"})
    arrival = read_interaction(event, deferred=False)

    assert isinstance(arrival, Arrival)
    assert arrival.group_ids == ("12", "10", "1")
    assert (arrival.sender.name, arrival.meta) == ("Countess", {})


def test_a_pressed_button_is_an_action() -> None:
    """Its value is the text."""
    event = interaction(type=3, data={"custom_id": "yes", "component_type": 2}, message={"id": "55"})
    arrival = read_interaction(event, deferred=True)

    assert isinstance(arrival, Arrival)
    assert (arrival.kind, arrival.text, arrival.platform_id) == ("action", "yes", "55")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("12"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(
    {*raw(), *interaction(), "edited_timestamp", "message_reference", "referenced_message", "member", "flags"}
    | {"message_snapshots", "sticker_items", "poll", "guild_id", "channel", "webhook_id"}
)


@drawn(300)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_no_shape_raises(odd: dict[str, Any]) -> None:
    """Whatever stands in a field, the answer is an arrival or the reason why there is none."""
    for found in (
        read_message(raw() | odd, ME, HERE, nothing),
        read_edit(raw(edited_timestamp="2026-01-02T03:04:05+00:00") | odd, ME, HERE),
        read_interaction(interaction() | odd, deferred=True),
    ):
        assert isinstance(found, Arrival | SkippedMessage)


@given(st.datetimes(min_value=datetime(2015, 1, 2), max_value=datetime(2100, 1, 1)))
def test_ids_hold_their_time(at: datetime) -> None:
    """An instant's id lies before those of all messages written from then on."""
    at = at.replace(tzinfo=UTC)

    assert instant_of(snowflake_at(at)) <= at
    assert (at - instant_of(snowflake_at(at))).total_seconds() < 0.001


def test_a_number_that_no_queue_could_carry_is_unreadable() -> None:
    """The id of the letter would be longer than a queue takes; other ids are those of a chat and a person."""
    found = read_message(raw(id=str(10**250)), ME, HERE, nothing)

    assert isinstance(found, SkippedMessage)
    assert found.strange
    assert read_deletion({"id": str(2**64)}, HERE, person="7") == []
    assert len(read_deletion({"id": str(2**64 - 1)}, HERE, person="7")) == 1


def test_what_says_nothing_is_no_letter() -> None:
    """The queue would refuse it, and the chat be told of a message that failed."""
    pressed = {"id": "1", "type": 3, "channel_id": "5", "user": ADA, "token": "t", "application_id": "7"}

    assert isinstance(
        read_interaction(pressed | {"data": {"custom_id": " "}}, deferred=False), SkippedMessage
    )
    for message in (raw(" \n"), raw(""), raw("x", attachments=[{}])):
        assert arrived(message).unreadable
