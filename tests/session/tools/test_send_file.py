"""What may go beside a file is as long as the shortest that a platform takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.errors import ToolError
from session.tools import ToolPlace
from session.tools.send_file import SendFile


@pytest.mark.parametrize("caption", ["x" * 1024, "🦀" * 512])
async def test_a_caption_that_every_platform_takes_is_taken(tmp_path: Path, caption: str) -> None:
    (tmp_path / "plan.txt").write_text("plan")
    place = ToolPlace(tmp_path, "telegram:1")
    assert "plan.txt" in await SendFile(max_bytes=100).run({"path": "plan.txt", "caption": caption}, place)


@pytest.mark.parametrize("caption", ["x" * 1025, "🦀" * 513])
async def test_a_longer_one_is_refused_with_what_to_do(tmp_path: Path, caption: str) -> None:
    """An emoji counts as two, as Telegram counts: its file would be refused."""
    (tmp_path / "plan.txt").write_text("plan")
    place = ToolPlace(tmp_path, "telegram:1")
    with pytest.raises(ToolError, match="put it in your answer"):
        await SendFile(max_bytes=100).run({"path": "plan.txt", "caption": caption}, place)
