"""What shows that an answer is being written costs little, however much waits and however long it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.base import Rendered
from tests.gateway.delivery_place import Place
from tests.gateway.outbound.test_drafts import stage


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_many_messages_that_wait_in_one_chat_show_no_more_than_one(place: Place) -> None:
    """A backlog would else be as many calls at once, which a platform refuses; other chats are shown, too."""
    async with stage(place) as on:
        for number in range(20):
            await on.tell("queued", asked=f"fake:{number}")
        await on.tell("queued", key="fake:bob")
        await on.platform.until(lambda platform: "bob" in platform.typings)
        assert on.platform.typings == ["ada", "bob"]

        on.time.now_s += 4
        await on.tell("queued", asked="fake:20")
        await on.platform.until(lambda platform: platform.typings == ["ada", "bob", "ada"])


async def test_a_long_answer_is_rendered_no_more_once_its_first_message_is_full(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    split = place.channel.split

    def counted(text: str) -> list[Rendered]:
        rendered.append(len(text))
        return split(text)

    monkeypatch.setattr(place.channel, "split", counted)
    async with stage(place) as on:
        await on.tell("started")
        for _ in range(12):
            await on.tell("delta", "x" * 5_000)
            await on.time.pass_by(1)
        assert on.platform.texts() == ["x" * 40]
    assert 1 <= len(rendered) <= 4
    assert max(rendered) <= 20_000
