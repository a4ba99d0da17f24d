"""What doctor says of the files that people sent."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.config.settings import Settings
from gateway.doctor.checks import examine
from gateway.doctor.workspace import MEDIA_MANY_BYTES


async def test_doctor_warns_of_many_media(tmp_path: Path) -> None:
    (tmp_path / "media" / "ab").mkdir(parents=True)
    file = tmp_path / "media" / "ab" / "film.mp4"
    file.touch()
    settings = Settings.model_validate({"workspace": tmp_path})
    levels = {}
    for size in (2**20, MEDIA_MANY_BYTES + 1):
        # A file with a hole takes no place on the disk.
        os.truncate(file, size)
        (levels[size],) = [check async for check in examine(settings) if check.name == "media"]

    assert [check.level for check in levels.values()] == ["ok", "warn"]
    assert levels[2**20].text == "1 MB in media/"
    assert "retention_days" in levels[MEDIA_MANY_BYTES + 1].cure
