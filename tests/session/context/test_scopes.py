"""Whose memory a chat sees."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from session.context.request import Request
from session.context.scopes import (
    Agents,
    Binding,
    Chat,
    Reader,
    Scopes,
    chat_in,
    counts_as_group,
    newer,
    told,
)
from session.memory.scope_resolver import ScopeResolver, remember_chat_kind
from session.store.store import Session, Store
from session.transcript.agent import agent_in, is_name
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.session.memory_place import ADA, BOB, open_workspace, talk


def test_each_chat_has_its_own_or_direct_chats_share_one(tmp_path: Path) -> None:
    """The transcript's own name is a chat's, suffix included; in scope ``workspace`` a group sees its own."""
    chats, shared = Scopes(tmp_path, kind="chat"), Scopes(tmp_path, kind="workspace")

    chat = chats.of(Reader("a:b:c", "direct"), stem="a_b_c~1a2b3c4d")
    named = chats.of(Reader("workspace", None), stem="workspace")
    direct = shared.of(Reader("telegram:1", "direct"), stem="telegram_1")
    group = shared.of(Reader("telegram:-5", "group"), stem="telegram_-5")

    assert chat.memory == tmp_path / "memory/chats/a_b_c~1a2b3c4d"
    assert chat.files == tmp_path / "files/chats/a_b_c~1a2b3c4d"
    assert (direct.memory, direct.files) == (tmp_path / "memory", tmp_path / "files")
    assert group.memory == tmp_path / "memory/chats/telegram_-5"
    # Nor does a chat whose transcript is called ``workspace`` fall into the shared one's state.
    assert len({chat.name, named.name, direct.name, group.name}) == 4


@pytest.mark.parametrize("ended", [False, True])
async def test_a_groups_talk_stays_out_of_the_shared_memory(tmp_path: Path, ended: bool) -> None:
    """Background work knows a group by its stored lines, after a restart and an end too."""
    async with open_workspace(tmp_path, kind="workspace") as first:
        await first.said(BOB, talk(10, group=True))
        if ended:
            await first.new(BOB)
            assert (await first.scope(BOB)).memory == tmp_path / "memory/chats/telegram_2"

    async with open_workspace(tmp_path, kind="workspace") as second:
        await second.said(ADA, talk(10))
        await second.jobs.at_once(BOB)
        await second.jobs.at_once(ADA)

        assert (tmp_path / "memory/chats/telegram_2/MEMORY.md").read_text() == (
            "- fact 1 (said in the group)\n"
        )
        assert (tmp_path / "memory/MEMORY.md").read_text() == "- fact 2\n"


async def test_prompt_holds_no_other_chats_notes(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, [make_line("user", "the code is 4711", "2026-01-31T09:00:00"), *talk(11)])
        await workspace.said(BOB, talk(12))
        await workspace.memory.consolidate(ADA)
        await workspace.memory.consolidate(BOB)

        assert "4711" in workspace.model.text(0)
        assert "4711" not in workspace.model.text(1)
        assert "fact 1" not in workspace.model.text(1)


AT = "2026-01-31T09:00:00+00:00"
GROUP, JOB = SessionKey("telegram:-5"), SessionKey("cron:j1")


def user(id_: str, **more: Any) -> dict[str, Any]:
    return make_line("user", "hi", AT, message_id=id_, **more)


@pytest.mark.parametrize(
    ("reader", "group"),
    [
        (Reader("telegram:1", "direct"), False),
        (Reader("telegram:1", "group"), True),
        (Reader("telegram:1", None), True),
        (Reader("slack:C1", None), True),
        (Reader("cli:direct", None), False),
        (Reader("web:a", None), False),
        (Reader("cron:j1", None), False),
        (Reader("cron:j1", "group"), True),
        (Reader("heartbeat", None), False),
    ],
)
def test_what_nobody_told_of_a_platforms_chat_counts_as_a_group(reader: Reader, group: bool) -> None:
    assert counts_as_group(reader) is group


@pytest.mark.parametrize(
    ("key", "id_", "group", "said"),
    [
        ("telegram:1", "telegram:99:7", False, "direct"),
        ("telegram:-5", "telegram:99:7", True, "group"),
        ("telegram:-5", "web:01K", False, None),
        ("telegram:-5", "cli:01K", False, None),
        ("telegram:-5", "cron:j1@2026", False, None),
        ("slack:C1", "Ev123", False, "direct"),
        ("web:a", "web:01K", False, None),
        ("web:a", "web:01K", True, "group"),
        ("cron:j1", "cron:j1@2026", False, None),
    ],
)
def test_only_a_message_of_the_platform_tells_that_a_chat_is_direct(
    key: str, id_: str, group: bool, said: Chat | None
) -> None:
    assert told(key, id_, group=group) == said


def test_a_group_never_becomes_a_direct_chat() -> None:
    assert (newer(None, "direct"), newer("direct", "group")) == ("direct", "group")
    assert (newer("group", "direct"), newer("direct", None)) == (None, None)


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ([], None),
        ([user("telegram:9:1")], "direct"),
        ([user("telegram:9:1"), user("telegram:9:2", group=True), user("telegram:9:3")], "group"),
        ([user("web:1"), user("cron:j@1")], None),
        ([make_line("user", "of another program", AT)], None),
        ([make_line("assistant", "hi", AT, message_id="telegram:9:1")], None),
    ],
)
async def test_lines_of_before_tell_what_line_1_does_not(
    tmp_path: Path, lines: Sequence[dict[str, Any]], known: Chat | None
) -> None:
    store = Store(tmp_path, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(lines)

        assert chat_in(session.transcript) == known
    await store.aclose()


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder, zone=UTC, clock=lambda: datetime(2026, 2, 1, tzinfo=UTC))
        self.scope_resolver = ScopeResolver(Scopes(folder, kind="workspace"), store=self.store)

    async def ask(self, key: SessionKey, id_: str, *, group: bool = False, answer_to: str = "") -> str:
        """Let a message come, and have its line written; return the name of the scope that it had."""
        async with self.store.open(key) as session:
            return await self.within(session, id_, group=group, answer_to=answer_to)

    async def within(self, session: Session, id_: str, *, group: bool, answer_to: str) -> str:
        said = told(session.key, id_, group=group)
        await remember_chat_kind(session, said)
        request = Request(id_, session.key, "hi", chat=said, answer_to=answer_to)
        scope = await self.scope_resolver.of(session, request)
        await session.append([user(id_, group=True if said == "group" else None)])
        return scope.name

    async def new(self, key: SessionKey) -> None:
        async with self.store.open(key) as session:
            await session.end()

    async def restart(self) -> None:
        await self.store.aclose()
        self.__init__(self.folder)  # type: ignore[misc]


async def test_what_the_platform_told_outlives_new_sessions_and_restarts(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert await place.ask(ADA, "telegram:9:1") == "workspace"
    assert await place.ask(GROUP, "telegram:9:2", group=True) == "chats/telegram_-5"
    await place.new(ADA)
    await place.new(GROUP)
    await place.restart()

    assert await place.ask(ADA, "web:1") == "workspace"
    assert await place.ask(GROUP, "web:2") == "chats/telegram_-5"
    assert (await place.scope_resolver.of_key(ADA)).name == "workspace"
    await place.store.aclose()


async def test_a_new_chats_file_is_written_once(tmp_path: Path) -> None:
    """What is learned before the first line costs no write of its own."""
    place = Place(tmp_path)
    async with place.store.open(ADA) as session:
        await remember_chat_kind(session, "direct")
        assert not session.path.exists()
        await session.append([user("telegram:9:1")])
    await place.restart()

    assert (await place.store.look(ADA)).metadata["chat"] == "direct"
    await place.store.aclose()


async def test_a_chat_of_which_only_the_owner_spoke_counts_as_a_group_until_it_speaks(tmp_path: Path) -> None:
    place = Place(tmp_path)

    assert await place.ask(ADA, "web:1") == "chats/telegram_1"
    assert (await place.scope_resolver.of_key(ADA)).name == "chats/telegram_1"
    assert await place.ask(ADA, "telegram:9:1") == "workspace"
    assert await place.ask(ADA, "web:2") == "workspace"
    await place.store.aclose()


@pytest.mark.parametrize(
    ("chat", "scope"),
    [("group", "chats/telegram_-5"), (None, "chats/telegram_-5"), ("direct", "workspace")],
)
async def test_a_job_may_see_what_those_may_who_get_its_answers(
    tmp_path: Path, chat: Chat | None, scope: str
) -> None:
    place = Place(tmp_path)
    if chat is not None:
        await place.ask(GROUP, "telegram:9:2", group=chat == "group")

    assert await place.ask(JOB, "cron:j1@1", answer_to=GROUP) == scope
    assert await place.ask(JOB, "cron:j1@2") == scope
    assert (await place.scope_resolver.of_key(JOB, GROUP)).name == scope
    # What background work knows of it, in the next process and after the session ended.
    await place.new(JOB)
    await place.restart()
    assert (await place.scope_resolver.of_key(JOB)).name == scope
    await place.store.aclose()


BINDINGS = [
    Binding("channel", "telegram", "clerk"),
    Binding("person", "telegram:1", "coder"),
    Binding("chat", "telegram:-5", "coder"),
    Binding("topic", "telegram:-5:topic:7", "clerk", fixed=True),
    Binding("chat", "telegram:9", ""),
]
AGENTS = Agents({"coder": "chat", "clerk": "workspace"}, BINDINGS)


@pytest.mark.parametrize(
    ("key", "chosen", "agent"),
    [
        ("cli:direct", None, ""),
        ("telegram:2", None, "clerk"),
        ("telegram:1", None, "coder"),
        ("telegram:-5", None, "coder"),
        ("telegram:-5:topic:8", None, "coder"),
        ("telegram:-5:topic:7", None, "clerk"),
        ("telegram:-55", None, "clerk"),
        ("telegram:9", None, ""),
        ("telegram:2", "coder", "coder"),
        ("telegram:2", "", ""),
        ("telegram:2", "gone", "clerk"),
        ("telegram:-5:topic:7", "coder", "clerk"),
    ],
)
def test_what_was_chosen_goes_before_the_most_specific_binding(
    key: str, chosen: str | None, agent: str
) -> None:
    """But not where the binding is fixed, nor where nobody has that name any more."""
    assert AGENTS.of(key, chosen) == agent


def test_each_agent_has_scopes_of_its_own(tmp_path: Path) -> None:
    """Those of the default one are where they are without any other."""
    scopes = Scopes(tmp_path, kind="chat", people={"ada": ["telegram:1"]}, agents=AGENTS)
    reader = Reader("telegram:1", "direct")

    found = {
        agent: scopes.of(reader, stem="telegram_1", agent=agent) for agent in ("", "coder", "clerk", "x")
    }

    assert {agent: scope.name for agent, scope in found.items()} == {
        "": "people/ada",
        "coder": "agents/coder/people/ada",
        "clerk": "agents/clerk/workspace",
        "x": "agents/x/people/ada",
    }
    assert found["coder"].memory == tmp_path / "agents/coder/memory/people/ada"
    assert found["clerk"].files == tmp_path / "agents/clerk/files"
    for scope in found.values():
        assert scopes.named(scope.name) == scope
        assert scope.person == (None if scope.agent == "clerk" else "ada")


@pytest.mark.parametrize("name", ["default", "chats", "people", "", "A", "a/b", "..", "a" * 33, "-a"])
def test_a_name_that_could_lead_elsewhere_is_none(name: str) -> None:
    assert not is_name(name)
    assert agent_in({"agent": name}) == ""
