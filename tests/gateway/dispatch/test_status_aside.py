"""``/status`` is answered at once, exactly once, however long the turn before it runs."""

from __future__ import annotations

from pathlib import Path

import orjson

from channels.message import Inbound
from gateway.queue.mailbox import INBOUND, Post
from session.transcript.key import slot_of
from tests.gateway.http_place import open_place
from tests.gateway.worker_rig import ADA, letter, rig
from tests.support.guarantee import guarantee
from tests.support.until import until


def order(asked: Inbound) -> bytes:
    letter_of = orjson.loads(asked.to_bytes())
    return orjson.dumps({"v": 1, "id": asked.id, "do": "status", "key": asked.key, "letter": letter_of})


@guarantee("interfaces", "`/status` is answered immediately and once, however long the current turn takes.")
async def test_a_letter_is_answered_while_a_turn_runs(tmp_path: Path) -> None:
    """The answer overtakes the running turn and what waits; it is a reply, and there is one."""
    async with rig(tmp_path, "one", "two") as r:
        await r.begin("long", "m1")
        await r.put("next", "m2")
        await r.put("/status", "s1", platform_id="77")

        (said,) = await r.replies(1)
        assert (said.id, said.kind, said.reply_to) == ("s1#reply", "reply", "77")
        assert said.text.startswith("fine\nsession: ")

        r.model.release.set()
        assert await r.ids(2) == ["m1#reply", "m2#reply"]
        await until(lambda: r.worker.lanes.get(ADA) is None)
        await r.put("after", "m3")
        assert await r.ids(1) == ["m3#reply"]


@guarantee("interfaces", "`/status` is answered immediately and once, however long the current turn takes.")
async def test_an_order_overtakes_its_letter(tmp_path: Path) -> None:
    """Out of line it is answered before the letter comes; the letter then says nothing more."""
    async with rig(tmp_path, "one") as r:
        await r.begin("long", "m1")
        asked = letter("/status", "s1", platform_id="77")
        await r.mailbox.tell("control", slot_of(ADA), order(asked))
        (said,) = await r.replies(1)
        assert (said.id, said.kind, said.reply_to) == ("s1#reply", "reply", "77")

        await r.mailbox.put(Post(INBOUND, ADA, "s1", asked.to_bytes()))
        await r.mailbox.tell("control", slot_of(ADA), order(asked))
        r.model.release.set()
        assert await r.ids(1) == ["m1#reply"]
        await until(lambda: r.worker.lanes.get(ADA) is None)
        await r.put("after", "m2")
        assert await r.ids(1) == ["m2#reply"]


async def test_without_letters_of_the_chat_an_order_is_another_daemons(tmp_path: Path) -> None:
    """Only where the lane is, is it known what waits; the letter is answered where it comes."""
    async with rig(tmp_path, "one") as r:
        asked = letter("/status", "s1")
        await r.mailbox.tell("control", slot_of(ADA), order(asked))
        await r.put("hello", "m1")
        assert await r.ids(1) == ["m1#reply"]

        await r.mailbox.put(Post(INBOUND, ADA, "s1", asked.to_bytes()))
        assert await r.ids(1) == ["s1#reply"]


async def test_what_another_daemon_said_stands(tmp_path: Path) -> None:
    """The end that was recorded first is sent again under the same number; nothing else is recorded."""
    async with rig(tmp_path, "one") as r:
        async with r.store.open(ADA) as session:
            first = await session.journal.conclude("s1", "command", text="as it was")
            again = await session.journal.conclude("s1", "command", text="later", once=True)
        assert (again.text, again.seq) == (first.text, first.seq)
        await r.begin("long", "m1")
        await r.put("/status", "s1")

        (said,) = await r.replies(1)
        r.model.release.set()

        assert (said.text, said.meta["seq"]) == ("as it was", first.seq)


async def test_an_order_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    """Damaged orders are logged; the next one is heard."""
    async with rig(tmp_path, "one") as r:
        await r.begin("long", "m1")
        for letter_of in ({}, {"v": 1}, 7, None, "x"):
            body = orjson.dumps({"v": 1, "id": "s", "do": "status", "key": ADA, "letter": letter_of})
            await r.mailbox.tell("control", slot_of(ADA), body)
        await r.mailbox.tell("control", slot_of(ADA), orjson.dumps({"v": 1, "do": "status", "key": ADA}))
        await r.mailbox.tell("control", slot_of(ADA), order(letter("/status", "s1")))

        assert await r.ids(1) == ["s1#reply"]
        r.model.release.set()


async def test_the_answer_tells_what_runs_and_waits(tmp_path: Path) -> None:
    """Through the daemon: the running turn and what waits are counted, the asking itself is not."""
    async with open_place(tmp_path) as place:
        model = place.gate()
        await place.post("one")
        await model.begun.wait()
        await place.post("two")
        said = await place.post("/status", wait=20)
        model.let.set()
        after = await place.post("/status", wait=20, id="after")

    lines = said.json()["reply"].splitlines()
    assert said.json()["kind"] == "reply"
    assert lines[1].startswith("answering: for ")
    assert lines[2] == "waiting: 1 message"
    assert "session: " in after.json()["reply"]
