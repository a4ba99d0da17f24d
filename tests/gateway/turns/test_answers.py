"""What an answer carries back, and where it goes when it was asked for another chat."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from channels.message import Inbound, read_outbound
from gateway.turns import replies
from gateway.turns.letter_rules import LetterRules
from session.context.links import linked_files
from session.store.store import Session
from session.transcript.attachments import Attachment
from session.turn.turn import Request
from tests.contracts.models import Script
from tests.gateway.waits import until
from tests.gateway.worker_rig import Rig, letter, rig

Ended = tuple[str, str, str]


async def test_the_adapters_meta_comes_back_beside_the_answers_own(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("hello", "m1", platform_id="77", meta={"token": "t", "seq": 99})
        await r.put("/help", "m2", meta={"token": "u"})

        first, second = await r.replies(2)

        assert (first.reply_to, first.meta) == ("77", {"token": "t", "seq": 1})
        assert second.meta == {"token": "u", "seq": 2}


def test_a_place_that_came_with_the_message_is_none_of_ours() -> None:
    asked = letter("hello", "m1", meta={"token": "t", "seq": 99})

    post = replies.notice(asked, "busy", "wait", datetime(2027, 1, 1, tzinfo=UTC))

    assert read_outbound(post.body).meta == {"token": "t"}


async def test_an_answer_for_another_chat_goes_there_and_quotes_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put(
            "report",
            "cron:j1@x",
            key="cron:j1",
            source="cron",
            cron_job_id="j1",
            answer_to="foreign:ada",
            platform_id="5",
            meta={"token": "t"},
        )

        (reply,) = await r.replies(1)

        assert (reply.id, reply.in_reply_to) == ("cron:j1@x#reply", "cron:j1@x")
        assert (reply.key, reply.channel, reply.chat_id) == ("foreign:ada", "foreign", "ada")
        assert (reply.reply_to, reply.meta) == (None, {})
        assert [line["content"] for line in await r.lines("cron:j1")] == ["report", "script: report"]


async def test_the_session_of_a_job_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for n in range(2):
            await r.put("report", f"m{n}", key="cron:a:b", source="cron", answer_to="foreign:ada")
            await r.put("/new", f"n{n}", key="cron:a:b", answer_to="foreign:ada")
            await r.replies(2)
        await r.put("hi", "m9", key="foreign:ada")
        await r.replies(1)

        rows = {(row.key, row.source, row.cron_job_id) for row in await r.store.rows()}
        assert rows == {("cron:a:b", "cron", "a:b"), ("foreign:ada", "interactive", None)}
        assert (await r.store.look("cron:a:b")).metadata["source"] == "cron"  # type: ignore[arg-type]


class Ends:
    """Notes how letters ended."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.times: list[int] = []

    def __call__(self, inbound: Inbound, status: str, error: str, duration_ms: int) -> None:
        self.ended.append((inbound.id, status, error))
        self.times.append(duration_ms)


async def ends(folder: Path, *steps: Any, puts: int) -> Ends:
    r = Rig(folder, Script(steps), LetterRules())
    noted = Ends()
    r.more["letter_ended"] = noted
    async with r.open():
        for n in range(puts):
            await r.put("go", f"m{n}", key="foreign:ada")
        await until(lambda: len(noted.ended) == puts)
    return noted


async def test_whoever_counts_runs_is_told_how_each_letter_ended(tmp_path: Path) -> None:
    from session.errors import ModelRefused

    noted = await ends(tmp_path, "fine", ModelRefused("no"), puts=2)

    assert noted.ended == [("m0", "ok", ""), ("m1", "error", "refused")]
    assert all(0 <= took < 20_000 for took in noted.times)


async def test_a_count_that_fails_brings_no_letter_back(tmp_path: Path) -> None:
    def broken(inbound: Inbound, status: str, error: str, duration_ms: int) -> None:
        raise RuntimeError(inbound.id)

    r = Rig(tmp_path, Script(), LetterRules())
    r.more["letter_ended"] = broken
    async with r.open():
        await r.put("a", "m1")
        await r.put("b", "m2")

        assert await r.texts(2) == ["script: a", "script: b"]
    assert len(r.model.prompts) == 2


async def test_an_answer_carries_the_files_that_it_links_to(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("data")

    async def enclosures(session: Session, request: Request, text: str) -> list[Attachment]:
        return linked_files(text, tmp_path / "files", workspace=tmp_path, max_bytes=100)

    r = Rig(tmp_path, Script(["see [a](a.txt)", "none [b](b.txt)"]), LetterRules())
    r.more["enclosures"] = enclosures
    async with r.open():
        for name in ("m1", "m2", "m1"):
            await r.put("go", name)
            (reply,) = await r.replies(1)
            files = [(file.kind, file.name, file.mime, file.size, file.ref) for file in reply.attachments]
            sent = [("document", "a.txt", "text/plain", 4, "files/a.txt")]
            assert files == (sent if name == "m1" else [])
            assert reply.text.endswith(")")
        await r.put("/nope [a](a.txt)", "m3")
        assert (await r.replies(1))[0].attachments == []
