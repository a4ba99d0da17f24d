"""What leaves is what was looked at: no link, pipe or other file that came into its place meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from channels.message import Attachment
from durable import locked
from gateway.outbound import attachments
from gateway.outbound.attachments import AttachmentCopies
from tests.gateway.delivery_place import Place, reply, until_empty
from tests.support.guarantee import guarantee

pytestmark = guarantee("security", "A file that is replaced between its check and its upload is not sent.")

REF = "files/reports/report.txt"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    report = tmp_path / REF
    report.parent.mkdir(parents=True)
    report.write_text("figures")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "report.txt").write_text("of another chat")
    made = Place(tmp_path)
    made.channel = type(made.channel)(made.platform, max_chars=200)
    made.may_leave = [tmp_path / "files"]
    return made


async def sent(place: Place, meanwhile: Callable[[], object]) -> list[str]:
    """Send a text and the report; ``meanwhile`` is done between the look at the file and its turn."""
    held = asyncio.Event()
    place.platform.fail(held)
    async with place.open() as mailbox:
        letter = reply(1, "here", files=[Attachment(name="report.txt", ref=REF)])
        await place.put(mailbox, letter)
        await place.platform.until(lambda platform: platform.hanging == 1)
        meanwhile()
        held.set()
        await until_empty(mailbox)
    return place.platform.texts()


def a_link(place: Place) -> None:
    report = place.folder / REF
    report.unlink()
    report.symlink_to(place.folder / "sessions" / "report.txt")


def a_link_on_the_way(place: Place) -> None:
    reports = (place.folder / REF).parent
    reports.rename(place.folder / "files" / "before")
    reports.symlink_to(place.folder / "sessions")


def a_pipe(place: Place) -> None:
    report = place.folder / REF
    report.unlink()
    os.mkfifo(report)


def a_larger_one(place: Place) -> None:
    (place.folder / REF).write_bytes(bytes(2**20 + 1))


def nothing(place: Place) -> None:
    (place.folder / REF).unlink()


@pytest.mark.parametrize("swap", [a_link, a_link_on_the_way, a_pipe, a_larger_one, nothing])
async def test_what_came_into_its_place_does_not_leave(place: Place, swap: Callable[[Place], None]) -> None:
    """A command may put it there while the text before the file is on its way."""
    texts = await sent(place, lambda: swap(place))

    assert texts == ["here", "[report.txt: this file could not be sent]"]
    assert place.platform.files == {}
    assert list((place.folder / "state" / "outgoing").iterdir()) == []


async def test_a_copy_has_the_name_and_is_gone_behind_its_call(place: Place) -> None:
    """Nothing of what was sent stays."""
    texts = await sent(place, lambda: None)

    assert texts == ["here", "report.txt"]
    assert list(place.platform.files.values()) == [b"figures"]
    assert list((place.folder / "state" / "outgoing").iterdir()) == []


async def test_what_the_disk_refuses_is_copied_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no reason to leave a file out."""
    refusals = iter([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])

    def write_all(fd: int, data: bytes) -> None:
        for refusal in refusals:
            raise refusal
        os.write(fd, data)

    monkeypatch.setattr(attachments, "write_all", write_all)
    texts = await sent(place, lambda: None)

    assert texts == ["here", "report.txt"]
    assert list(place.platform.files.values()) == [b"figures"]


async def test_what_a_killed_process_left_goes_and_what_another_has_stays(place: Place) -> None:
    """Their locks tell them apart."""
    outgoing = place.folder / "state" / "outgoing"
    for name in ("dead", "living"):
        (outgoing / name / "1").mkdir(parents=True)
        (outgoing / name / "1" / "report.txt").write_text(name)
        (outgoing / f"{name}.lock").touch()
    ours = AttachmentCopies(place.folder / "state", place.folder, max_bytes=100)
    with locked(outgoing / "living.lock"):
        async with ours.of((place.folder / REF).resolve()) as copy:
            left = {path.name for path in outgoing.iterdir()} - {copy.parent.parent.name}
        await ours.aclose()
        still = {path.name for path in outgoing.iterdir()}

    assert left - {f"{copy.parent.parent.name}.lock"} == {"living", "living.lock"}
    assert still == {"living", "living.lock"}


async def test_a_name_that_no_upload_can_carry_is_sent_under_another(tmp_path: Path) -> None:
    """Discord's client refuses control characters: the file was tried for ever, and held up its chat."""
    odd = tmp_path / os.fsdecode(b"a\r\nX: \x1b\xff\xc3\xbc.txt")
    odd.write_text("figures")
    made = AttachmentCopies(tmp_path / "state", tmp_path, max_bytes=100)

    async with made.of(odd) as copy:
        assert copy.name == "a__X: __ü.txt"
        assert copy.read_text() == "figures"
    await made.aclose()
