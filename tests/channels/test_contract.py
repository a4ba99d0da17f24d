"""The fake adapter keeps the contract, so that what is tested with it holds for real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from channels.base import Channel
from channels.testing import ChannelContract, FakeChannel, FakePlatform, FarSide
from tests.support.guarantee import guarantee

pytestmark = guarantee("interfaces", "All channel adapters fulfil the same contract.")


class TestFakeChannel(ChannelContract):
    remembers = False

    @asynccontextmanager
    async def _open(self, platform: FakePlatform) -> AsyncIterator[FakeChannel]:
        channel = FakeChannel(platform, safe_to_repeat=self.remembers)
        try:
            yield channel
        finally:
            await channel.aclose()

    @asynccontextmanager
    async def open_channel(self) -> AsyncIterator[tuple[Channel, FarSide]]:
        platform = FakePlatform(remembers=self.remembers)
        async with self._open(platform) as channel:
            yield channel, platform

    def open_again(self, platform: FarSide) -> AbstractAsyncContextManager[Channel]:
        assert isinstance(platform, FakePlatform)
        return self._open(platform)


class TestFakeChannelThatRemembers(TestFakeChannel):
    """On a platform that recognises a repeat by its nonce."""

    remembers = True
