"""Says in a line of text what a Telegram message holds that is neither text nor a file; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from channels.telegram.written import moment, with_entities

Raw = Mapping[str, Any]

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
