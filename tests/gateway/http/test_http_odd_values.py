"""What no UTF-8 and no usual number holds: files, models and other programs bring it, and lists show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.http.errors import encoded
from session.models.model import Answer
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.contracts.models import Script
from tests.gateway.http_place import Place
from tests.support.guarantee import guarantee

AT = "2026-03-01T10:00:00.000001+00:00"
HUGE = 99_999_999_999_999_999_999
ODD_KEY = "cli:a\udcff"


async def fill(place: Place, key: str, arguments: str) -> str:
    """Store a session with a name and a call as other programs may leave them; return its ULID."""
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": arguments}}
    async with place.services.store.open(SessionKey(key)) as session:
        await session.append(
            [
                make_line("user", "half \ud83d", AT, message_id="1"),
                make_line("assistant", "", AT, message_id="1", tool_calls=[call]),
                make_line("tool", "done", AT, message_id="1", tool_call_id="c", name="read"),
                make_line("assistant", "told", AT, message_id="1", final=True),
            ]
        )
        return session.transcript.session_id


@pytest.mark.parametrize(
    "arguments", [f'{{"path":"a","offset":{HUGE}}}', r'{"path":"\ud83d"}', "[" * 300 + "]" * 300]
)
async def test_no_odd_session_hides_the_others(place: Place, arguments: str) -> None:
    await place.post("hello", chat="bob", wait=30)
    ulid = await fill(place, ODD_KEY, arguments)

    for path in ("/v1/sessions", "/v1/chats"):
        answer = await place.http.get(path)
        assert answer.status_code == 200, path
        assert "web:bob" in answer.text
        assert "cli:a\ufffd" in answer.text
    for path in ("", "/messages", "/entries"):
        answer = await place.http.get(f"/v1/sessions/{ulid}{path}")
        assert answer.status_code == 200, path
    assert "told" in answer.text


async def test_no_odd_job_hides_the_others(place: Place, tmp_path: Path) -> None:
    jobs = [
        {
            "id": id_,
            "name": name,
            "schedule": {"kind": "every", "everyMs": 7_200_000},
            "payload": {"message": "go", "more": HUGE},
        }
        for id_, name in (("odd", "half \ud83d"), ("usual", "n"))
    ]
    (tmp_path / "cron").mkdir(exist_ok=True)
    (tmp_path / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": jobs}))

    answer = await place.http.get("/v1/cron")

    assert answer.status_code == 200
    found = {job["id"]: job for job in answer.json()["jobs"]}
    assert {id_: job["name"] for id_, job in found.items()} == {"odd": "half \ufffd", "usual": "n"}
    assert found["odd"]["payload"]["more"] == HUGE


@guarantee("failures", "An answer with invalid Unicode still reaches its chat.")
async def test_an_answer_with_half_a_character_is_told(place: Place) -> None:
    """A model of our own making may say it: an answer that no queue takes would be made three times."""
    model = Script([Answer("half \ud83d, and more")])
    place.services.turns.model = model
    async with place.stream("web:ada") as stream:
        answer = await place.post("go", wait=30)
        event, _ = await stream.next("reply")

    assert answer.json()["reply"] == event["text"] == "half \ufffd, and more"
    assert model.steps == []


def test_what_is_nested_without_end_is_cut() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]

    found = json.loads(
        encoded({"deep": deep, "odd": "\ud83d\ude00 \udc00", "none": float("nan"), "most": HUGE})
    )

    assert (found["odd"], found["none"], found["most"]) == ("😀 \ufffd", None, HUGE)
    assert str(found["deep"]).count("[") == 199
