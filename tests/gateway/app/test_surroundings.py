"""What the model is told of what goes on: in its own scope, of the last week, and nothing of other chats."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.app.surroundings import SurroundingsReader
from gateway.config.load import load
from session.background.job_files import BackgroundJob, JobFiles
from session.context.context import Event, OpenWork, Surroundings, WorkingMemory, working
from session.context.scopes import Reader, Scopes
from tests.support.place import write

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)
TELEGRAM = {
    "CHAT_GATEWAY_CHANNELS__TELEGRAM__TOKEN": "1:x",
    "CHAT_GATEWAY_CHANNELS__TELEGRAM__ENABLED": "true",
}
ADA, PHONE, GROUP = "cli:ada", "telegram:1", "telegram:-5"


def job(
    id_: str, to: str, *, next_in_h: float = 1, runs: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    channel, _, chat_id = to.partition(":")
    ms = int(NOW.timestamp() * 1000)
    return {
        "id": id_,
        "name": f"name of {id_}",
        "enabled": True,
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "payload": {"kind": "agent_turn", "message": "m", "deliver": True, "channel": channel, "to": chat_id},
        "state": {
            "nextRunAtMs": ms + int(next_in_h * 3_600_000),
            "runHistory": [
                {"runAtMs": ms - 60_000 * (at + 1), "status": status, "error": "key sk-1"}
                for at, status in enumerate(runs)
            ],
        },
        "createdAtMs": ms,
        **more,
    }


def around(workspace: Path, key: str, *others: str, group: bool = False, agent: str = "") -> WorkingMemory:
    scopes = Scopes(workspace, kind="chat", people={"ada": (ADA, PHONE)})
    scope = scopes.of(Reader(key, "group" if group else "direct"), stem=key.replace(":", "_"), agent=agent)
    reader = SurroundingsReader(load(workspace=workspace, environ=TELEGRAM))
    return reader(Surroundings(key, scope, others))


def texts(known: WorkingMemory) -> set[str]:
    return {event.text for event in known.events}


def test_it_tells_of_the_jobs_notes_and_files_of_its_own_scope(tmp_path: Path) -> None:
    rows = [
        job("a", ADA, runs=("ok", "error")),
        job("p", PHONE, runs=("ok",)),
        job("g", GROUP, runs=("ok",)),
        job("off", ADA, enabled=False),
    ]
    write(tmp_path / "cron" / "jobs.json", json.dumps({"version": 1, "jobs": rows}))
    for scope in ("people/ada", "chats/telegram_-5"):
        write(tmp_path / "memory" / scope / "USER.md", "x")
        write(tmp_path / "files" / scope / f"{scope[-3:]}.txt", "x")
    JobFiles(tmp_path / "state").keep(BackgroundJob(ADA, "01KG9NB3H07RQM9J4WJJSQ7EXV"))

    mine, theirs = around(tmp_path, ADA, PHONE), around(tmp_path, GROUP, group=True)

    assert texts(mine) == {
        "the job “name of a” ran",
        "the job “name of a” failed",
        "the job “name of p” ran",
        "the profile was changed",
        "the file ada.txt was written",
    }
    assert [work.text for work in mine.open_work] == [
        "1 ended conversation to be taken into memory",
        "the job “name of a” (a)",
    ]
    assert texts(theirs) == {
        "the job “name of g” ran",
        "the profile was changed",
        "the file _-5.txt was written",
    }
    assert [work.text for work in theirs.open_work] == ["the job “name of g” (g)"]
    assert ([channel.name for channel in mine.channels], theirs.channels) == (["telegram"], ())
    assert not mine.channels[0].up


def test_jobs_of_another_agent_are_not_told_of(tmp_path: Path) -> None:
    """Their names are mostly the beginning of what they ask; those of no agent are everybody's."""
    rows = [job(name, GROUP, runs=("ok",)) for name in ("coder", "default", "none")]
    for row in rows[:2]:
        row["payload"]["agent"] = row["id"]
    write(tmp_path / "cron" / "jobs.json", json.dumps({"version": 1, "jobs": rows}))

    default, coder = (around(tmp_path, GROUP, group=True, agent=agent) for agent in ("", "coder"))

    assert texts(default) == {"the job “name of default” ran", "the job “name of none” ran"}
    assert [work.text for work in coder.open_work] == [
        "the job “name of coder” (coder)",
        "the job “name of none” (none)",
    ]


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "cron" / "jobs.json", '{"jobs": [{"id": 3}, {"id": "a", "state": [')
    write(tmp_path / "files" / "people" / "ada", "no folder")

    known = around(tmp_path, ADA)

    assert (known.events, known.open_work) == ([], [])


def test_ten_events_of_a_week_and_five_things_that_are_open_are_told() -> None:
    events = [Event(NOW - timedelta(hours=20 * number), f"event {number}\n## Rules") for number in range(12)]
    work = [OpenWork(f"work {number}", NOW + timedelta(hours=number)) for number in range(8)]

    activity, open_work, channels = working(WorkingMemory(events, work), NOW)

    rows = activity.text.split("\n")
    assert len(rows) == 9
    assert rows[-1] == "- [2026-02-01 12:00] event 0 ## Rules"
    assert rows[0].startswith("- [2026-01-25 20:00] event 8")
    many = working(WorkingMemory([Event(NOW, str(number)) for number in range(30)]), NOW)[0]
    assert many.text.count("\n") == 9
    assert open_work.text.split("\n")[-2:] == ["- work 4, next at 2026-02-01 16:00", "- and 3 more"]
    assert (channels.text, activity.changing) == ("", True)
