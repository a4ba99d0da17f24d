"""A group that gets a new id goes on under its new key, with what it said under the old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.cron.jobs import new_row
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import Every
from gateway.dispatch import routing
from gateway.dispatch.routing import AgentSet
from gateway.dispatch.worker import DispatchRules
from session.background.job_files import file_name, move_jobs
from session.context.scopes import Agents, Binding
from session.disk.state import read_state, write_state
from session.transcript.key import SessionKey
from tests.contracts.models import Script
from tests.gateway.worker_rig import Rig, letter, rig
from tests.support.guarantee import guarantee
from tests.support.until import until

OLD, NEW = SessionKey("foreign:-5"), SessionKey("foreign:-1005")


async def moved(r: Rig, id: str = "mv") -> None:
    await r.put("", id, key=OLD, kind="action", meta={"moved_to": NEW})


async def texts(r: Rig, key: str = NEW) -> list[Any]:
    return [line["content"] for line in await r.lines(key)]


async def test_it_waits_for_the_messages_before_it_and_does_not_wait_for_the_new_key(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.begin("first", "m1", key=OLD)
        await moved(r)
        await r.put("second", "m2", key=NEW)
        r.model.release.set()
        await r.replies(2)
        await r.settled()

        assert await texts(r) == ["first", "script: first", "second", "script: second"]


@guarantee("sessions", "A group whose id changes keeps its jobs.")
async def test_the_jobs_of_the_chat_go_with_it(tmp_path: Path) -> None:
    """A damaged file of jobs holds up nothing."""
    file = CronFile(tmp_path)
    async with rig(tmp_path) as r:
        now = r.clock()
        file.add(new_row(Every(60_000, now), "m", at=now, to=OLD, in_chat=True))
        await moved(r)
        await r.settled()
        (job,) = file.read().jobs.values()
        file.path.write_text("{")
        await moved(r, "mv2")
        await r.settled()

        assert job.key == NEW
        assert (await r.store.look(OLD)).journal.known("mv2") is not None
        assert file.path.read_text() == "{"


async def test_letters_of_the_old_key_that_come_again_are_known(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("first", "m1", key=OLD)
        await r.put("/help", "m2", key=OLD)
        await moved(r)
        before = await r.replies(2)
        await r.settled()
        await r.put("first", "m1", key=OLD)
        await r.put("/help", "m2", key=OLD)
        await moved(r)
        again = await r.replies(2)
        await r.settled()

        assert [(reply.id, reply.text) for reply in again] == [(reply.id, reply.text) for reply in before]
        assert len(r.model.prompts) == 1
        assert await texts(r) == ["first", "script: first"]


async def test_jobs_of_ended_sessions_go_along(tmp_path: Path) -> None:
    ulid = "01KJ0000000000000000000000"
    jobs = tmp_path / "jobs"
    for key in (OLD, "foreign:other"):
        write_state(jobs / file_name(ulid, key), {"kind": "consolidate", "key": key, "session": ulid})

    move_jobs(tmp_path, OLD, NEW)
    move_jobs(tmp_path, OLD, NEW)

    assert {path.name for path in jobs.glob("*.json")} == {
        file_name(ulid, NEW),
        file_name(ulid, "foreign:other"),
    }
    assert read_state(jobs / file_name(ulid, NEW)) == {
        "v": 1,
        "kind": "consolidate",
        "key": NEW,
        "session": ulid,
    }


@pytest.mark.parametrize(
    ("kind", "meta", "target"),
    [
        ("action", {"moved_to": NEW}, NEW),
        ("message", {"moved_to": NEW}, None),
        ("action", {}, None),
        ("action", {"moved_to": 5}, None),
        ("action", {"moved_to": OLD}, None),
        ("action", {"moved_to": "other:-1005"}, None),
        ("action", {"moved_to": "foreign:"}, None),
        ("action", {"moved_to": "nonsense"}, None),
    ],
)
def test_only_an_action_that_names_another_chat_of_the_channel_moves_it(
    kind: str, meta: dict[str, Any], target: str | None
) -> None:
    assert routing.moved_to(letter("", "m", OLD, kind=kind, meta=meta)) == target


class TwoAgents(Rig):
    """A worker with a second agent, to which the group was bound by its old key."""

    def agents(self) -> AgentSet:
        every = super().agents().every
        rules = Agents({"coder": "chat"}, [Binding("chat", OLD, "coder")])
        return AgentSet({**every, "coder": every[""]}, rules)


@pytest.mark.parametrize("runs", [False, True])
async def test_lines_of_two_agents_are_not_put_together(tmp_path: Path, *, runs: bool) -> None:
    """What another agent was told under the new key ends as a session of its own, its turn answered first."""
    built = TwoAgents(tmp_path, Script(), DispatchRules())
    async with built.open() as r:
        await r.say("first", "m1", key=OLD)
        if runs:
            r.model.held.clear()
            await r.begin("second", "m2", key=NEW)
        else:
            await r.say("second", "m2", key=NEW)
        await moved(r)
        if runs:
            r.model.release.set()
            await r.replies(1)
        await until(lambda: r.worker.lanes.get(OLD) is None)
        await r.settled()

        assert await texts(r) in (["first", "script: first"], ["second", "script: second"])
        rows = {row.agent: row.message_count for row in await r.store.rows() if row.key == NEW}
        assert rows == {"coder": 2, "default": 2}
