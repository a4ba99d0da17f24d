"""What one machine's ledger notes in the workspace, another machine's ledger knows once it takes over."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import LedgerDown
from gateway.outbound import ledger_log
from gateway.outbound.ledger import DeliveryLedger, Progress
from gateway.outbound.ledger_file import rows_noted
from gateway.outbound.ledger_log import LedgerLog
from tests.gateway.embedded_place import files_at_most

KEY, OUT = "fake:ada", "fake:1#reply"


class Machines:
    """Machines of one workspace, each with a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "state" / "deliveries" / "fake"

    def ledger(self, name: str) -> DeliveryLedger:
        """Open the ledger of a machine, as it does that gets the lease."""
        return DeliveryLedger(self.folder / name / "delivery-fake.db", log=LedgerLog(self.log, name))

    def lines(self) -> list[dict[str, object]]:
        """Return what stands in the workspace."""
        texts = (path.read_text() for path in sorted(self.log.glob("*")))
        return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


async def test_the_next_machine_knows_all_and_the_first_one_what_came_then(machines: Machines) -> None:
    """Pieces, doubts, drafts and moves; what was done already is not done again with the next lease."""
    async with machines.ledger("one") as ledger:
        await ledger.trying(KEY, OUT, 0)
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        await ledger.trying(KEY, OUT, 1)
        await ledger.begin_draft(KEY, "fake:2#reply")
        await ledger.draft_sent(KEY, "fake:2#reply", "m2")
        await ledger.moved("a", "b")
    for _ in range(2):
        async with machines.ledger("other") as ledger:
            assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"}, unknown={1: 1})
            assert (await ledger.progress(KEY, "fake:2#reply")).draft == "m2"
            assert ledger.address("a") == "b"
    async with machines.ledger("other") as ledger:
        at = datetime(2027, 1, 1, tzinfo=UTC)
        await ledger.sent(KEY, OUT, 1, platform_id="m3", last=True, put_at=at)

    async with machines.ledger("one") as ledger:
        assert await ledger.progress(KEY, OUT) == Progress(done=True)
    noted = {(row.id, row.piece): row.platform_id for row in rows_noted(machines.folder / "state", "fake:1")}
    assert noted == {(OUT, None): "", (OUT, 0): "m1", (OUT, 1): "m3", (OUT, -1): ""}


async def test_a_doubt_stays_one_however_often_the_lease_changes(machines: Machines) -> None:
    """Neither one's own notes are done again, nor the last one of another machine."""
    async with machines.ledger("one") as ledger:
        await ledger.trying(KEY, OUT, 0)
    for name in ("one", "other", "other", "one"):
        async with machines.ledger(name) as ledger:
            assert (await ledger.progress(KEY, OUT)).unknown == {0: 1}


async def test_what_a_machine_answers_it_answers_where_it_tells_the_others_too(machines: Machines) -> None:
    """One draft is begun, and it is known where a chat moved to."""
    async with machines.ledger("one") as ledger:
        assert await ledger.begin_draft(KEY, OUT) == ""
        assert await ledger.begin_draft(KEY, OUT) is None
        await ledger.draft_sent(KEY, OUT, "m1")
        assert await ledger.begin_draft(KEY, OUT) == "m1"
        await ledger.moved("a", "b")
        assert ledger.address("a") == "b"


async def test_looking_is_not_noted_and_without_a_machine_nothing_is(machines: Machines) -> None:
    async with machines.ledger("one") as ledger:
        await ledger.progress(KEY, OUT)
    async with machines.ledger("") as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")

    assert not machines.log.exists()


async def test_what_a_kill_left_of_a_line_costs_no_other(machines: Machines) -> None:
    """So do lines that are no notes, and those of a newer version."""
    async with machines.ledger("one") as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
    (file,) = machines.log.iterdir()
    with file.open("ab") as opened:
        opened.write(b'[1]\n\0\0\0\n{"n": 2, "at": 1, "do": "later", "key": "k"}\n')
        opened.write(b'{"n": 3, "at": 1, "do": "count", "more": 1}\n{"n": 4, "at": 1, "do": "do')

    async with machines.ledger("other") as ledger:
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"})


@pytest.mark.parametrize(
    "spoilt",
    [
        '"do": "sent_last", "key": "k", "out_id": "o", "piece": 0, "platform_id": "", "put_at": "2027-91"',
        '"do": "forget", "keyr": ["k"], "before": null',
        '"do": "forget", "keys": ["k"], "before": "soon"',
        '"do": "done", "key": null, "out_id": "o"',
        '"do": "done", "key": ["k"], "out_id": "o"',
        '"do": "count", "key": "k", "out_id": "o", "piece": 1e20, "by": 1',
        '"do": "sent", "key": "k", "out_id": "o", "piece": 99999999999999999999, "platform_id": "m"',
    ],
)
async def test_a_note_that_a_disk_has_spoilt_keeps_no_machine_from_taking_over(
    machines: Machines, spoilt: str
) -> None:
    """It is a line that can be read and says nothing that can be done; what stands behind it counts."""
    async with machines.ledger("one") as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        (file,) = machines.log.iterdir()
        with file.open("a") as opened:
            opened.write(f'{{"n": 2, "at": 1, {spoilt}}}\n')
        await ledger.sent(KEY, OUT, 1, platform_id="m2")

    async with machines.ledger("other") as ledger:
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1", 1: "m2"})


async def test_nothing_counts_that_the_other_machines_cannot_be_told(machines: Machines) -> None:
    """A disk that refuses the note refuses the change; it is done again once there is room."""
    async with machines.ledger("one") as ledger:
        await ledger.trying(KEY, "fake:0#reply", 0)
        (file,) = machines.log.iterdir()
        with file.open("ab") as opened:
            opened.truncate(2**19)
        with files_at_most(2**19 - 2**10), pytest.raises(LedgerDown):
            await ledger.trying(KEY, OUT, 0)
        await ledger.trying(KEY, OUT, 0)

    async with machines.ledger("other") as ledger:
        assert (await ledger.progress(KEY, OUT)).unknown


@pytest.mark.parametrize("ago", [None, timedelta(0), timedelta(hours=1)])
async def test_what_is_forgotten_leaves_the_files_and_the_other_machine(
    machines: Machines, ago: timedelta | None
) -> None:
    """Beside a process that writes: it goes on. With a time, letters stay that were done since."""
    before = None if ago is None else datetime.now(UTC) + timedelta(seconds=1) - ago
    state, stays = machines.folder / "state", ago == timedelta(hours=1)
    async with machines.ledger("one") as ledger:
        await ledger.done(KEY, OUT)
        await ledger.done("fake:bob", OUT)
        ledger_log.forget(state, [KEY], before=before)
        await ledger.done("fake:bob", "fake:2#reply")

    keys = {row.get("key") for row in machines.lines()}
    assert keys - {None} == {"fake:bob"} | ({KEY} if stays else set())
    async with machines.ledger("other") as ledger:
        assert (await ledger.progress(KEY, OUT)).done == stays
        assert (await ledger.progress("fake:bob", OUT)).done
        assert (await ledger.progress("fake:bob", "fake:2#reply")).done


async def test_what_one_machine_forgets_the_other_forgets_that_knew_it(machines: Machines) -> None:
    async with machines.ledger("one") as ledger:
        await ledger.done(KEY, OUT)
    async with machines.ledger("other") as ledger:
        assert (await ledger.progress(KEY, OUT)).done
    log = LedgerLog(machines.log, "one")
    log.append([ledger_log.Note(ledger_log.FORGET, {"keys": [KEY], "before": None})], 1)
    log.close()

    async with machines.ledger("other") as ledger:
        assert await ledger.progress(KEY, OUT) == Progress()
