"""Says in a line of text what a Telegram message holds that is neither text nor a file; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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
        "message_auto_delete_timer_changed",
        "new_chat_members",
        "new_chat_photo",
        "new_chat_title",
        "paid_message_price_changed",
        "passport_data",
        "pinned_message",
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
    """Return a line such as ``[sticker 😀]``; empty where the message holds nothing of the kind."""
    for field, words in _WORDS.items():
        content = message.get(field)
        if content:
            return f"[{' '.join(words(content).split())}]"
    return ""


def _sticker(sticker: Raw) -> str:
    return f"sticker {sticker.get('emoji') or sticker.get('set_name') or ''}"


def _location(location: Raw) -> str:
    return f"location {location['latitude']}, {location['longitude']}"


def _venue(venue: Raw) -> str:
    place = venue["location"]
    return f"place {venue['title']}, {venue['address']}, {place['latitude']}, {place['longitude']}"


def _contact(contact: Raw) -> str:
    name = " ".join(filter(None, (contact.get("first_name"), contact.get("last_name"))))
    return f"contact {name}, {contact['phone_number']}"


def _poll(poll: Raw) -> str:
    return f"poll {poll['question']}: {' / '.join(option['text'] for option in poll['options'])}"


def _checklist(checklist: Raw) -> str:
    return f"checklist {checklist['title']}: {' / '.join(task['text'] for task in checklist['tasks'])}"


_WORDS: Final[dict[str, Callable[[Raw], str]]] = {
    "sticker": _sticker,
    # A venue stands before its location, which comes along.
    "venue": _venue,
    "location": _location,
    "contact": _contact,
    "poll": _poll,
    "dice": lambda dice: f"dice {dice['emoji']} {dice['value']}",
    "checklist": _checklist,
    "game": lambda game: f"game {game['title']}",
    "invoice": lambda invoice: f"invoice {invoice['title']}",
    "paid_media": lambda _: "paid media",
    "story": lambda _: "story",
    "giveaway": lambda _: "giveaway",
    "giveaway_winners": lambda _: "giveaway winners",
    "web_app_data": lambda data: f"web app data: {data['data']}",
}
