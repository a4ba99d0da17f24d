"""All the ways by which people write, each chat by its own; to everybody else they are one."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.feed import Feed
from tests.chaos.records import Message, Reply


class Post:
    """Which feed each chat has; ``ordered`` are the chats whose replies come as they were put."""

    def __init__(self, feeds: Mapping[str, Feed], ordered: frozenset[str]) -> None:
        self.ordered = ordered
        self._feeds = feeds
        self._all = list(dict.fromkeys(feeds.values()))

    @property
    def replies(self) -> list[Reply]:
        """All that came, by each way in its order."""
        return [reply for feed in self._all for reply in feed.replies]

    @property
    def published(self) -> Mapping[str, int]:
        """How often each message was put into the queue, or may have been."""
        return {one: times for feed in self._all for one, times in feed.published.items()}

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        return self._feeds[chat].stem(chat)

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it."""
        return next((name for feed in self._all if (name := feed.named(id)) != id), id)

    async def put(self, message: Message) -> None:
        """Return once the message is accepted."""
        await self._feeds[message.chat].put(message)

    async def remind(self, message: Message) -> None:
        """Ask for a reply that was told while nobody listened."""
        await self._feeds[message.chat].remind(message)
