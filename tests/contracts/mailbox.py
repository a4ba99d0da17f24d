"""What every mailbox must keep, as one test class."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import LetterLost
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post
from tests.contracts.posts import (
    ADA,
    BOB,
    WEB,
    collect,
    falls_to,
    ids,
    lose_one,
    park_one,
    pass_through,
    post,
    put_all,
)


class MailboxContract:
    """The promises of ``Mailbox``. A subclass says how one is opened, and how one takes over from another."""

    # Whether a post whose id waits already is not stored again; else the taker recognises it.
    refuses_repeats = True

    def open_mailbox(self) -> AbstractAsyncContextManager[Mailbox]:
        """Open a mailbox on storage that nothing was put into: served and ready. Leaving closes it."""
        raise NotImplementedError

    def take_over(self, first: Mailbox) -> AbstractAsyncContextManager[Mailbox]:
        """Let ``first`` vanish without a word, its takers still open; open another one on the same storage.

        The context in which ``first`` was opened is left later all the same, and must bear it.
        """
        raise NotImplementedError

    async def test_put_is_durable(self) -> None:
        """What was put is taken by a successor, with its box, id, body and trace."""
        async with self.open_mailbox() as first:
            await first.put(Post(INBOUND, ADA, "web:ada#1", b'{"text": "hi"}', {"traceparent": "00-a-b-01"}))

            async with self.take_over(first) as second, second.take(INBOUND) as letters:
                (letter,) = await collect(letters, 1)
                found = (letter.box, letter.id, letter.body, letter.headers["traceparent"])
                assert found == (INBOUND, "web:ada#1", b'{"text": "hi"}', "00-a-b-01")

    async def test_letters_of_a_key_come_in_order(self) -> None:
        """Letters put before and after the box was opened come in the order of their puts."""
        async with self.open_mailbox() as mailbox:
            await mailbox.put(post(ADA, "before"))
            async with mailbox.take(INBOUND) as letters:
                expected = ["web:ada#before", *await put_all(mailbox, ADA, 30)]
                assert ids(await collect(letters, 31)) == expected

    async def test_settle_puts_replies(self) -> None:
        """The puts of a settle can be taken from their boxes, in order, and the letter is gone."""
        async with self.open_mailbox() as mailbox:
            await put_all(mailbox, ADA, 1)
            async with mailbox.take(INBOUND) as letters:
                (letter,) = await collect(letters, 1)
                await mailbox.settle(letter, [post(ADA, "a", box=WEB), post(ADA, "b", box=WEB)])
                async with mailbox.take(WEB) as replies:
                    assert ids(await collect(replies, 2)) == ["web:ada#a", "web:ada#b"]

                await mailbox.put(post(ADA, "next"))
                assert ids(await collect(letters, 1)) == ["web:ada#next"]

    async def test_repeated_put_is_one_letter(self) -> None:
        """The same id in the same box and key is one message: stored once, or taken twice under one id."""
        async with self.open_mailbox() as mailbox:
            for number in (1, 1, 2):
                await mailbox.put(post(ADA, number))
            async with mailbox.take(INBOUND) as letters:
                taken = ids(await collect(letters, 2 if self.refuses_repeats else 3))
                assert list(dict.fromkeys(taken)) == ["web:ada#1", "web:ada#2"]

    async def test_same_id_elsewhere_is_another_letter(self) -> None:
        """Ids are unique within box and key only, also where all are parked at once."""
        posts = [
            Post(INBOUND, ADA, "1", b"a"),
            Post(INBOUND, BOB, "1", b"b"),
            Post(WEB, ADA, "1", b"a"),
        ]
        async with self.open_mailbox() as mailbox:
            for each in posts:
                await mailbox.put(each)
            async with mailbox.take(INBOUND) as letters, mailbox.take(WEB) as replies:
                taken = [*await collect(letters, 2), *await collect(replies, 1)]
                assert {letter.body for letter in taken[:2]} == {b"a", b"b"}
                assert taken[2].body == b"a"
                await asyncio.gather(*(mailbox.park(letter, ParkedAs(None, "odd", 0)) for letter in taken))

            parked = await mailbox.parked()
            assert sorted((each.box, each.body) for each in parked) == sorted(
                (each.box, each.body) for each in posts
            )

    @pytest.mark.parametrize(
        "key", ["web:😀 ü", "web:a/../b", "web:nul\0nul", "web:" + "é" * 500, "web:a:b c"]
    )
    async def test_any_key_is_a_key(self, key: str) -> None:
        """A key may hold whatever a platform calls a chat."""
        async with self.open_mailbox() as mailbox, mailbox.take(INBOUND) as letters:
            await mailbox.put(Post(INBOUND, key, "1", b"one"))
            await mailbox.put(Post(INBOUND, key, "2", b"two"))
            assert [letter.body for letter in await collect(letters, 2)] == [b"one", b"two"]

    async def test_big_and_binary_bodies(self) -> None:
        """A body of several MiB, an empty one and one of any bytes come as they were put."""
        bodies = [bytes(range(256)) * 2**14, b"", b"\0\xff\r\n"]
        async with self.open_mailbox() as mailbox, mailbox.take(INBOUND) as letters:
            for number, body in enumerate(bodies):
                await mailbox.put(post(ADA, number, body=body))
            assert [letter.body for letter in await collect(letters, 3)] == bodies

    async def test_redelivery_in_order_as_suspects(self) -> None:
        """What a vanished process held comes again, in order, as suspects, before what was put later."""
        async with self.open_mailbox() as first:
            names = await put_all(first, ADA, 5)
            async with first.take(INBOUND) as letters:
                await first.settle((await collect(letters, 5))[0])

                async with self.take_over(first) as second, second.take(INBOUND) as again:
                    await second.put(post(ADA, "later"))
                    came = await collect(again, 5)
                    assert ids(came) == [*names[1:], "web:ada#later"]
                    assert [letter.suspect for letter in came] == [True] * 4 + [False]

    async def test_leaving_gives_back_in_order(self) -> None:
        """Who leaves the box loses what is unsettled; the next taker gets it first, in order, as suspects."""
        async with self.open_mailbox() as mailbox:
            names = await put_all(mailbox, ADA, 4)
            async with mailbox.take(INBOUND) as letters:
                held = await collect(letters, 4)
                await mailbox.settle(held[0])
            await mailbox.put(post(ADA, "later"))

            async with mailbox.take(INBOUND) as again:
                came = await collect(again, 4)
            assert ids(came) == [*names[1:], "web:ada#later"]
            assert all(letter.suspect for letter in came[:3])
            assert all(letter.lost for letter in held[1:])
            assert not held[0].lost

    async def test_lost_letter_cannot_be_settled_or_parked(self) -> None:
        """Either says so; the puts are durable, a copy is parked, and the letter comes again."""
        async with self.open_mailbox() as mailbox:
            letter = await lose_one(mailbox)
            with pytest.raises(LetterLost):
                await mailbox.settle(letter, [post(ADA, "reply", box=WEB)])
            with pytest.raises(LetterLost):
                await mailbox.park(letter, ParkedAs(ADA, "late", 3))

            assert ids(await mailbox.parked()) == ["web:ada#0"]
            async with mailbox.take(WEB) as replies, mailbox.take(INBOUND) as again:
                assert ids(await collect(replies, 1)) == ["web:ada#reply"]
                assert ids(await collect(again, 1)) == ["web:ada#0"]

    async def test_second_taker_waits_for_the_first(self) -> None:
        """Of two takers of a box one gets the letters; when it leaves, the other gets the rest in order."""
        async with self.open_mailbox() as mailbox, asyncio.TaskGroup() as tasks:
            opened = asyncio.Event()

            async def second() -> list[str]:
                async with mailbox.take(INBOUND) as letters:
                    opened.set()
                    return ids(await collect(letters, 3))

            async with mailbox.take(INBOUND) as letters:
                waiting = tasks.create_task(second())
                await opened.wait()
                names = await put_all(mailbox, ADA, 4)
                held = await collect(letters, 4)
                await mailbox.settle(held[0])
                assert not waiting.done()

            assert await waiting == names[1:]

    async def test_many_keys_at_once(self) -> None:
        """200 keys of 20 letters, put and settled side by side: none is missing, each key in order."""
        async with self.open_mailbox() as mailbox, mailbox.take(INBOUND) as letters:
            await pass_through(mailbox, letters, keys=200, each=20)

    async def test_a_full_key_holds_up_no_other(self) -> None:
        """With 500 letters of one key unsettled, another key's letters are taken and settled as they come."""
        async with self.open_mailbox() as mailbox, mailbox.take(INBOUND) as letters:
            await put_all(mailbox, ADA, 500)
            await mailbox.put(post(BOB, 0))
            taken = await collect(letters, 501)
            assert "web:bob#0" in ids(taken)

            for number in range(1, 4):
                await mailbox.put(post(BOB, number))
                (letter,) = await collect(letters, 1)
                assert letter.id == f"web:bob#{number}"
                await mailbox.settle(letter)

    async def test_depths_count_what_is_not_settled(self) -> None:
        """A letter counts until it is settled, taken or not; parked ones count apart."""
        async with self.open_mailbox() as mailbox:
            await park_one(mailbox, post(ADA, "bad"), key=ADA)
            await put_all(mailbox, ADA, 3)
            before = await mailbox.depths()
            async with mailbox.take(INBOUND) as letters:
                held = await collect(letters, 3)
                taken = await mailbox.depths()
                await mailbox.settle(held[0])
                await falls_to(mailbox, INBOUND, 2)

            assert (before["parked"].count, before[INBOUND].count) == (1, 3)
            assert taken[INBOUND].count == 3

    async def test_parked_letter_is_kept_with_its_reason(self) -> None:
        """A parked letter is out of its box and listed with all that is known of it, also by a successor."""
        async with self.open_mailbox() as first:
            await park_one(first, post(ADA, 1, body=b"{not json"), key=ADA, reason="no JSON object")
            await park_one(first, post(BOB, 2), key=None)

            async with self.take_over(first) as second:
                one, two = await second.parked()
                await second.put(post(ADA, "next"))
                async with second.take(INBOUND) as letters:
                    assert ids(await collect(letters, 1)) == ["web:ada#next"]

        assert (one.id, one.box, one.key, one.body) == ("web:ada#1", INBOUND, ADA, b"{not json")
        assert (one.reason, one.attempts, INBOUND in one.origin) == ("no JSON object", 2, True)
        assert abs(datetime.now(UTC) - one.parked_at) < timedelta(minutes=5)
        assert (two.id, two.key) == ("web:bob#2", None)

    async def test_mark_is_made_between_parked_and_gone(self) -> None:
        """The mark is awaited once the copy is durable and before the letter goes; if it fails that stays."""
        async with self.open_mailbox() as mailbox:
            seen: list[tuple[int, int]] = []

            async def mark() -> None:
                seen.append((len(await mailbox.parked()), (await mailbox.depths())[INBOUND].count))
                if len(seen) == 1:
                    raise OSError("the journal is away")

            await put_all(mailbox, ADA, 1)
            async with mailbox.take(INBOUND) as letters:
                (letter,) = await collect(letters, 1)
                with pytest.raises(OSError, match="journal"):
                    await mailbox.park(letter, ParkedAs(ADA, "poison", 3), mark=mark)
                assert not letter.lost
                await mailbox.park(letter, ParkedAs(ADA, "poison", 3), mark=mark)

            assert [seen[0], seen[1][1]] == [(1, 1), 1]
            await falls_to(mailbox, INBOUND, 0)

    async def test_replay_puts_at_the_end(self) -> None:
        """A replayed letter comes after what waits already, as it was, and is no longer parked."""
        async with self.open_mailbox() as mailbox:
            await park_one(mailbox, post(ADA, "bad"), key=ADA)
            await put_all(mailbox, ADA, 2)
            listed = await mailbox.parked()

            assert [await mailbox.replay("web:ada#bad")] == listed
            assert await mailbox.parked() == []
            async with mailbox.take(INBOUND) as letters:
                came = await collect(letters, 3)
            assert ids(came) == ["web:ada#0", "web:ada#1", "web:ada#bad"]
            assert came[2].body == b"web:ada#bad"

    async def test_drop_removes_for_good(self) -> None:
        """Where two chats have parked letters of one id the key decides; dropped again nothing is found."""
        async with self.open_mailbox() as mailbox:
            for key in (ADA, BOB):
                await park_one(mailbox, Post(INBOUND, key, "1", key.encode()), key=key)
            for act in (mailbox.replay, mailbox.drop):
                with pytest.raises(LookupError):
                    await act("1")

            ada, bob = await mailbox.parked()
            assert await mailbox.drop("1", key=BOB) == bob
            assert await mailbox.parked() == [ada]
            assert await mailbox.drop("1", key=BOB) is None
            assert await mailbox.drop("1") == ada
            assert await mailbox.replay("1") is None

    async def test_what_is_told_reaches_its_listeners(self) -> None:
        """Events go to those of their slot, or of all, in the order of the tells; control to everyone."""
        async with (
            self.open_mailbox() as mailbox,
            mailbox.listen("events", {5, 7}) as some,
            mailbox.listen("events") as every,
            mailbox.listen("control") as one,
            mailbox.listen("control") as other,
        ):
            await mailbox.tell("control", 9, b"stop")
            for slot in (6, 5, 255, 7):
                await mailbox.tell("events", slot, b"%d" % slot)

            assert await collect(some, 2) == [b"5", b"7"]
            assert await collect(every, 4) == [b"6", b"5", b"255", b"7"]
            assert await collect(one, 1) == await collect(other, 1) == [b"stop"]

    async def test_telling_nobody_is_no_error(self) -> None:
        """What nobody listens to is lost without a word; later listeners do not hear it."""
        async with self.open_mailbox() as mailbox:
            await mailbox.tell("events", 1, b"lost")
            # This is confirmed behind it, on the same connection.
            await put_all(mailbox, ADA, 1)
            async with mailbox.listen("events") as heard:
                await mailbox.tell("events", 1, b"heard")
                assert await collect(heard, 1) == [b"heard"]
