"""People who write over the stub platform, and what they are shown: its pieces put together to replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.chaos.pieces import told
from tests.chaos.records import Message, Reply
from tests.chaos.stub_telegram import BOT, StubTelegram, chat_id


class OverTelegram:
    """A feed of the chats that the stub platform has; what is written there is accepted."""

    def __init__(self, platform: StubTelegram) -> None:
        self.published: Mapping[str, int] = {}
        self._platform = platform
        self._messages: dict[str, Message] = {}

    @property
    def replies(self) -> Sequence[Reply]:
        """What people were told, each wording once, in the order in which it began."""
        return told(self._platform.sent, self._messages)

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        return f"telegram_{chat_id(chat)}"

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it."""
        _, _, number = id.rpartition(":")
        update = self._platform.updates.get(int(number)) if number.isdecimal() else None
        return update.message if update is not None and id.startswith(f"telegram:{BOT['id']}:") else id

    async def put(self, message: Message) -> None:
        """Write it, once a bot has been there; from then on it is the platform's to hand it out."""
        await self._platform.polled.wait()
        self._messages[message.id] = message
        await self._platform.write(message.chat, message.id, message.text)

    async def remind(self, message: Message) -> None:
        """Wait: whoever dies has it come again."""
