"""The application tells its retention which files letters in the queue still name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import orjson

from gateway.queue.mailbox import INBOUND, Post
from session.background.retention import UNNAMED_FOR
from tests.gateway.http_place import open_place
from tests.support.until import until

NOBODYS, PARKED = (f"media/{digit * 2}/{digit * 64}.jpg" for digit in "ab")


def brought(workspace: Path, ref: str) -> Path:
    """Leave a file that came before retention may take those that nobody names."""
    path = workspace / ref
    path.parent.mkdir(parents=True)
    path.write_bytes(b"...")
    at = time.time() - 2 * UNNAMED_FOR.total_seconds()
    os.utime(path, (at, at))
    return path


async def test_a_file_of_a_parked_letter_stays(tmp_path: Path) -> None:
    """No transcript names it, so that without a look at the queue it would go with nobody's."""
    async with open_place(tmp_path, session={"retention_days": 30}) as place:
        services, mailbox = place.application.services, place.application.mailbox
        assert services is not None
        body = orjson.dumps({"v": 1, "text": 5, "attachments": [{"ref": PARKED}]})
        await mailbox.put(Post(INBOUND, "web:a", "web:odd", body))
        await until(mailbox.parked)
        nobodys, parked = brought(tmp_path, NOBODYS), brought(tmp_path, PARKED)
        await services.retention.prune()

    assert (nobodys.exists(), parked.exists()) == (False, True)
