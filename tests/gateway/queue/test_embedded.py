"""The embedded mailbox keeps the contract of every mailbox, and what only a file on a disk can promise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.errors import LetterLost, MailboxError
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post, outbound
from tests.contracts.mailbox import MailboxContract
from tests.contracts.posts import ADA, WEB, collect, ids, pass_through, post, put_all
from tests.gateway.embedded_place import opened, vanish
from tests.support.guarantee import guarantee

pytestmark = [
    guarantee("interfaces", "Both brokers fulfil the same contract."),
    guarantee("loss", "Different messages that are parked under one id are all kept."),
]


class TestEmbedded(MailboxContract):
    """The contract, over a file."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.state = tmp_path / "state"

    @asynccontextmanager
    async def open_mailbox(self) -> AsyncIterator[Mailbox]:
        async with opened(self.state) as mailbox:
            yield mailbox

    @asynccontextmanager
    async def take_over(self, first: Mailbox) -> AsyncIterator[Mailbox]:
        assert isinstance(first, EmbeddedMailbox)
        await vanish(first)
        async with opened(self.state) as mailbox:
            yield mailbox


# ── one folder, one daemon, one version ──────────────────────────────────────────────────────────────────


async def test_garbage_instead_of_a_queue_is_named(tmp_path: Path) -> None:
    """A file that is no queue ends serve with its path; it is not overwritten, and the folder is let go."""
    (tmp_path / "gateway.db").write_bytes(b"this is no database at all" * 100)

    for _ in range(2):
        with pytest.raises(MailboxError, match=r"gateway\.db") as refused:
            await EmbeddedMailbox(tmp_path).serve()
        assert refused.value.hint

    assert (tmp_path / "gateway.db").read_bytes().startswith(b"this is no database")


# ── the batch ────────────────────────────────────────────────────────────────────────────────────────────


async def test_puts_side_by_side_share_a_commit(tmp_path: Path) -> None:
    """A hundred puts at once cost a few commits, not a hundred."""
    commits: list[str] = []
    async with opened(tmp_path, at=lambda step: commits.append(step)) as mailbox:
        await asyncio.gather(*(mailbox.put(post(f"web:{number}", 1)) for number in range(100)))

    assert commits.count("committed") <= 5


async def test_one_bad_put_fails_alone(tmp_path: Path) -> None:
    """A put that can never be stored is refused without its neighbours in the batch."""
    async with opened(tmp_path) as mailbox:
        bad = Post(INBOUND, "web:\ud800", "1", b"a lone surrogate")
        good = [mailbox.put(post(ADA, number)) for number in range(3)]

        outcomes = await asyncio.gather(good[0], mailbox.put(bad), *good[1:], return_exceptions=True)

        assert isinstance(outcomes[1], ValueError)
        assert outcomes[:1] + outcomes[2:] == [None] * 3
        assert mailbox.health().up
        async with mailbox.take(INBOUND) as letters:
            assert ids(await collect(letters, 3)) == ["web:ada#0", "web:ada#1", "web:ada#2"]


async def test_settle_with_a_bad_put_changes_nothing(tmp_path: Path) -> None:
    """One transaction: where a reply cannot be stored, neither are the others, and the letter stays."""
    async with opened(tmp_path) as first:
        await first.put(post(ADA, 1))
        async with first.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)
            with pytest.raises(ValueError, match="surrogate"):
                await first.settle(letter, [post(ADA, "reply", box=WEB), Post(WEB, "web:\ud800", "2", b"")])
            assert not letter.lost

    async with opened(tmp_path) as second:
        depths = await second.depths()
        assert depths[INBOUND].count == 1
        assert WEB not in depths


async def test_settling_twice_is_settling_once(tmp_path: Path) -> None:
    """A second settle of a letter removes and counts nothing more."""
    async with opened(tmp_path) as mailbox:
        await put_all(mailbox, ADA, 2)
        async with mailbox.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)
            await asyncio.gather(mailbox.settle(letter), mailbox.settle(letter))
            await mailbox.settle(letter)
            assert (await mailbox.depths())[INBOUND].count == 1


async def test_repeat_of_a_taken_letter_is_not_delivered(tmp_path: Path) -> None:
    """While a letter is being worked on a put of its id changes nothing; once it is settled it counts."""
    async with opened(tmp_path) as mailbox, mailbox.take(INBOUND) as letters:
        await mailbox.put(post(ADA, 1))
        (letter,) = await collect(letters, 1)
        await mailbox.put(post(ADA, 1))
        await mailbox.put(post(ADA, 2))
        assert ids(await collect(letters, 1)) == ["web:ada#2"]
        assert (await mailbox.depths())[INBOUND].count == 2

        await mailbox.settle(letter, [post(ADA, 1)])

        assert ids(await collect(letters, 1)) == ["web:ada#1"]


async def test_cancelled_settle_still_counts(tmp_path: Path) -> None:
    """Who stops waiting for a settle has not undone it: the letter is gone, its reply there."""
    async with opened(tmp_path) as mailbox:
        await mailbox.put(post(ADA, 1))
        async with mailbox.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)
            settling = asyncio.create_task(mailbox.settle(letter, [post(ADA, "reply", box=WEB)]))
            await asyncio.sleep(0)
            settling.cancel()
        async with mailbox.take(WEB) as replies:
            assert ids(await collect(replies, 1)) == ["web:ada#reply"]
        assert (await mailbox.depths())[INBOUND].count == 0


async def test_leaving_during_a_settle_gives_the_letter_back_only_if_it_failed(tmp_path: Path) -> None:
    """A settle under way when the box is left succeeds; the letter does not come again."""
    async with opened(tmp_path) as mailbox:
        await put_all(mailbox, ADA, 3)
        async with mailbox.take(INBOUND) as letters:
            held = await collect(letters, 3)
            settling = asyncio.create_task(mailbox.settle(held[0]))
            await asyncio.sleep(0)

        async with mailbox.take(INBOUND) as again:
            assert ids(await collect(again, 2)) == ["web:ada#1", "web:ada#2"]
        await settling
        assert [letter.lost for letter in held] == [False, True, True]


async def test_what_waits_at_the_end_is_written(tmp_path: Path) -> None:
    """Puts still under way when serve is cancelled are stored before the folder is let go."""
    async with opened(tmp_path) as mailbox:
        puts = [asyncio.create_task(mailbox.put(post(ADA, number))) for number in range(5)]
        await asyncio.sleep(0)
        await vanish(mailbox)
        await asyncio.gather(*puts)

    async with opened(tmp_path) as second, second.take(INBOUND) as letters:
        assert len(await collect(letters, 5)) == 5


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("window", [1, 2, 7, 30])
async def test_small_window_keeps_order(tmp_path: Path, window: int) -> None:
    """Letters that do not fit into memory are read back in order while others are put and settled."""
    async with opened(tmp_path, window=window) as mailbox, mailbox.take(INBOUND) as letters:
        await pass_through(mailbox, letters, keys=8, each=30)

        assert (await mailbox.depths())[INBOUND].count == 0


async def test_box_opened_before_the_queue(tmp_path: Path) -> None:
    """Who takes before the mailbox serves, and while it serves for a second time, gets what is on disk."""
    async with opened(tmp_path) as first:
        names = await put_all(first, ADA, 2)

    mailbox = EmbeddedMailbox(tmp_path)
    async with mailbox.take(INBOUND) as letters:
        for _ in range(2):
            serving = asyncio.create_task(mailbox.serve())
            held = await collect(letters, 2)
            assert ids(held) == names
            serving.cancel()
            await asyncio.wait([serving])
            assert all(letter.lost for letter in held)


async def test_new_letter_does_not_overtake_one_on_disk(tmp_path: Path) -> None:
    """A put committed together with the settle that makes room comes after what waits outside memory."""
    async with opened(tmp_path, window=1) as mailbox, mailbox.take(INBOUND) as letters:
        await put_all(mailbox, ADA, 2)
        (letter,) = await collect(letters, 1)
        await asyncio.gather(mailbox.settle(letter), mailbox.put(post(ADA, 2)))

        for number in (1, 2):
            (letter,) = await collect(letters, 1)
            assert letter.id == f"web:ada#{number}"
            await mailbox.settle(letter)


async def test_rows_read_for_one_taker_are_not_given_to_the_next(tmp_path: Path) -> None:
    """A taker that comes while rows are read for one that has left gets each letter once."""
    gate = threading.Event()
    gate.set()
    async with opened(tmp_path, at=lambda _: gate.wait() and None) as mailbox:
        names = await put_all(mailbox, ADA, 3)
        gate.clear()
        async with mailbox.take(INBOUND):
            await asyncio.sleep(0)
        async with mailbox.take(INBOUND) as letters:
            gate.set()
            await mailbox.put(post(ADA, "end"))
            assert ids(await collect(letters, 4)) == [*names, "web:ada#end"]


async def test_window_is_never_passed(tmp_path: Path) -> None:
    """With a window's worth unsettled nothing more comes; a settle makes room for exactly one."""
    async with opened(tmp_path, window=3) as mailbox, mailbox.take(INBOUND) as letters:
        await put_all(mailbox, ADA, 5)
        held = await collect(letters, 3)
        further = asyncio.ensure_future(anext(letters))
        await mailbox.depths()
        assert not further.done()

        await mailbox.settle(held[0])

        assert (await further).id == "web:ada#3"


async def test_letters_without_an_id_are_not_repeats_of_each_other(tmp_path: Path) -> None:
    """An empty id names nothing: both letters are kept, and get a name of their own when parked."""
    async with opened(tmp_path) as mailbox:
        for _ in range(2):
            await mailbox.put(Post(INBOUND, ADA, "", b"anonymous"))
        async with mailbox.take(INBOUND) as letters:
            for letter in await collect(letters, 2):
                await mailbox.park(letter, ParkedAs(None, "no id", 0))

        one, two = await mailbox.parked()
        assert len({one.id, two.id, ""}) == 3
        assert await mailbox.replay(one.id) == one


async def test_letter_parked_again_is_parked_once(tmp_path: Path) -> None:
    """A process that ended between parking a letter and removing it leaves one parked letter, not two."""
    async with opened(tmp_path) as first:
        await put_all(first, ADA, 1)
        async with first.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)
            with pytest.raises(LetterLost):
                await first.park(letter, ParkedAs(ADA, "poison", 3), mark=lambda: vanish(first))

    async with opened(tmp_path) as second:
        async with second.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)
            await second.park(letter, ParkedAs(ADA, "poison", 3))
        assert ids(await second.parked()) == ["web:ada#0"]
        assert (await second.depths())[INBOUND].count == 0


async def test_slow_listener_loses_the_oldest(tmp_path: Path) -> None:
    """A listener that does not keep up is bounded: the newest thousand messages wait for it."""
    async with opened(tmp_path) as mailbox, mailbox.listen("events") as heard:
        for number in range(1_500):
            await mailbox.tell("events", 0, b"%d" % number)
        assert await anext(heard) == b"500"


async def test_what_waits_for_a_message_is_found_by_its_id(tmp_path: Path) -> None:
    """The message itself and what was put for it, until settled; nothing of an id that begins alike."""
    async with opened(tmp_path) as mailbox:
        for number, box in (("0", INBOUND), ("0#reply", WEB), ("01", INBOUND)):
            await mailbox.put(post(ADA, number, box=box))
        found = await mailbox.waiting("web:ada#0")
        async with mailbox.take(INBOUND) as letters:
            await mailbox.settle((await collect(letters, 1))[0])
        left = await mailbox.waiting("web:ada#0")

    assert [(each.box, each.key, each.id) for each in found] == [
        (INBOUND, ADA, "web:ada#0"),
        ("outbound.web", ADA, "web:ada#0#reply"),
    ]
    assert [each.id for each in left] == ["web:ada#0#reply"]


bounded = guarantee(
    "operation", "Messages take at most 64 MB of memory; larger backlogs wait in the queue, in order."
)
BOUND = 64_000
SIZE = 1_000
COUNT = 60


@bounded
async def test_window_of_bytes_lets_one_through(tmp_path: Path) -> None:
    """A body larger than the whole window comes all the same, alone."""
    async with opened(tmp_path, window_bytes=10) as mailbox:
        for number in range(3):
            await mailbox.put(post(ADA, number, body=bytes(100)))
        async with mailbox.take(INBOUND) as letters:
            for number in range(3):
                (letter,) = await collect(letters, 1)
                assert letter.id == f"web:ada#{number}"
                await mailbox.settle(letter)


@bounded
async def test_all_boxes_together_keep_within_the_bytes(tmp_path: Path) -> None:
    """A box that is full leaves the other one a share, and what is settled in one is free for both."""
    async with opened(tmp_path, window_bytes=BOUND) as mailbox:
        for box in (INBOUND, WEB):
            for number in range(COUNT):
                await mailbox.put(post(ADA, number, box=box, body=bytes(SIZE)))
        async with mailbox.take(INBOUND) as letters, mailbox.take(WEB) as replies:
            crowd = await collect(letters, BOUND // SIZE - 4)
            first = await collect(replies, 1)
            full = mailbox.in_memory()
            for letter in crowd:
                await mailbox.settle(letter)
                assert mailbox.in_memory().bytes <= BOUND
            rest = await collect(replies, COUNT - 1)
            after = mailbox.in_memory()

        assert BOUND - 4 * SIZE <= full.bytes <= BOUND == full.max_bytes
        assert full.letters * SIZE == full.bytes
        assert ids([*first, *rest]) == [post(ADA, number).id for number in range(COUNT)]
        assert after.letters == COUNT
        assert mailbox.in_memory().letters == 0


async def test_a_letter_that_does_not_fit_beside_others_is_not_read_again_and_again(tmp_path: Path) -> None:
    """The taker waits for what is settled, and meanwhile nothing is asked of the file."""
    asked: list[str] = []
    async with opened(tmp_path, window_bytes=BOUND, at=asked.append) as mailbox:
        for number, size in enumerate((SIZE, BOUND, SIZE)):
            await mailbox.put(post(ADA, number, body=bytes(size)))
        async with mailbox.take(INBOUND) as letters:
            (first,) = await collect(letters, 1)
            further = asyncio.ensure_future(anext(letters))
            await mailbox.depths()
            before = len(asked)
            for _ in range(3):
                await mailbox.depths()
            of_three_looks = len(asked) - before
            assert not further.done()

            await mailbox.settle(first)
            second = await further
            await mailbox.settle(second)
            (third,) = await collect(letters, 1)

    assert of_three_looks == 9
    assert ids([first, second, third]) == [post(ADA, number).id for number in range(3)]


def bytes_of(state: Path) -> bytes:
    return b"".join(path.read_bytes() for path in state.glob("gateway.db*"))


async def test_no_byte_of_a_key_stays_and_its_neighbours_go_on_in_order(tmp_path: Path) -> None:
    """Waiting, out, parked, settled long ago; one that is worked on ends, and is not parked again."""
    async with opened(tmp_path) as mailbox:
        for number in range(8):
            for key in ("a:1", "b:2"):
                body = f"{'sesame' if key == 'a:1' else 'bob'} {number}".encode() * 100
                await mailbox.put(Post(INBOUND, key, f"{key}-{number}", body))
        await mailbox.put(Post(outbound("a"), "a:1", "a:1-0#reply", b"sesame told" * 100))
        async with mailbox.take(INBOUND) as letters:
            settled, theirs, parked, _, running = [await anext(letters) for _ in range(5)]
            await mailbox.settle(settled)
            await mailbox.park(parked, ParkedAs("a:1", "failed", 1))

            bodies = await mailbox.erase(["a:1"])

            assert len(bodies) == 8
            assert b"sesame" not in bytes_of(tmp_path)
            assert dict((await mailbox.depths()).items())[INBOUND].count == 8
            await mailbox.park(running, ParkedAs("a:1", "failed", 1))
            assert await mailbox.parked() == []
            await mailbox.settle(theirs)
            assert (await mailbox.depths())[INBOUND].count == 7
            assert [(await anext(letters)).id for _ in range(6)] == [f"b:2-{n}" for n in range(2, 8)]
        assert b"sesame" not in bytes_of(tmp_path)

    async with opened(tmp_path) as mailbox, mailbox.take(INBOUND) as letters:
        assert [(await anext(letters)).id for _ in range(7)] == [f"b:2-{n}" for n in range(1, 8)]


async def test_a_settled_running_letter_leaves_its_answer_alone(tmp_path: Path) -> None:
    """Its row is gone; what it puts is put, and no count goes below what there is."""
    async with opened(tmp_path) as mailbox:
        await mailbox.put(Post(INBOUND, "a:1", "1", b"x"))
        async with mailbox.take(INBOUND) as letters:
            running = await anext(letters)
            await mailbox.erase(["a:1"])
            await mailbox.settle(running, [Post(outbound("a"), "a:1", "1#notice", b"gone")])

        depths = await mailbox.depths()
        assert (depths[INBOUND].count, depths[outbound("a")].count) == (0, 1)
