"""Whose memory and files the chats of people, groups and jobs have, drawn by one function."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from session.context.request import Request
from session.context.scopes import Chat, Reader, Scope, Scopes, told
from session.memory.scope_resolver import PARENT, ScopeResolver, remember_chat_kind
from session.store.store import Store
from session.subagents.records import Call, SubagentFiles
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.support.guarantee import guarantee

AT = "2026-01-31T09:00:00+00:00"
PHONE, DESK, OTHER, LISTED = "telegram:1", "cli:direct", "telegram:2", "telegram:-5"
PEOPLE = {"ada": (PHONE, DESK, LISTED, "discord:9"), "bob": (OTHER,)}


class Place:
    """A workspace with two people, whose scopes are resolved anew at each look."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder, zone=UTC, clock=lambda: datetime(2026, 2, 1, tzinfo=UTC))
        self.scope_resolver = ScopeResolver(Scopes(folder, kind="chat", people=PEOPLE), store=self.store)
        self.subagents = SubagentFiles(folder / "state")

    async def ask(self, key: str, *, group: bool = False, answer_to: str = "") -> str:
        """Let a message come, and have its line written; return the name of the scope that it had."""
        channel = key.partition(":")[0]
        async with self.store.open(SessionKey(key)) as session:
            said = told(key, f"{channel}:9:1", group=group)
            await remember_chat_kind(session, said)
            request = Request("1", session.key, "hi", chat=said, answer_to=answer_to)
            scope = await self.scope_resolver.of(session, request)
            await session.append(
                [
                    make_line("user", "hi", AT, message_id="1", group=group or None),
                    make_line("assistant", "hello", AT, message_id="1", final=True),
                ]
            )
            return scope.name

    async def started(self, key: str, **origin: object) -> str:
        """Have a message of a conversation start a subagent; return the key of that."""
        group = key == LISTED
        await self.ask(key, group=group)
        call = Call(key, (await self.store.look(SessionKey(key))).session_id, "1", "c1")
        origin = {"several": group, **origin}
        return self.subagents.begin(call, task="look", label="look", origin=origin).key

    async def lent(self, subagent: str, parent: str) -> Scope:
        """Return the scope of a subagent's conversation that names this parent."""
        own = Store(self.subagents.home, zone=UTC)
        async with own.open(SessionKey(subagent)) as session:
            await session.remember({PARENT: parent})
            scope = await self.scope_resolver.of(session, Request("s1", session.key, "look"))
        await own.aclose()
        return scope


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Place]:
    opened = Place(tmp_path)
    yield opened
    await opened.store.aclose()


@guarantee("leaks", "A group never sees a person's memory, even if its key is listed for that person.")
async def test_a_group_never_sees_a_persons_even_when_its_key_is_listed(here: Place) -> None:
    assert await here.ask(LISTED, group=True) == "chats/telegram_-5"
    assert (await here.scope_resolver.of_key(LISTED)).name == "chats/telegram_-5"
    assert here.scope_resolver.scopes.person(LISTED) == "ada"


async def test_the_direct_chats_of_a_person_share_and_nobody_else_does(here: Place, tmp_path: Path) -> None:
    found = [await here.ask(key) for key in (PHONE, DESK, OTHER, "telegram:3")]

    assert found == ["people/ada", "people/ada", "people/bob", "chats/telegram_3"]
    scope = await here.scope_resolver.of_key(PHONE)
    assert (scope.memory, scope.files, scope.person, scope.group) == (
        tmp_path / "memory/people/ada", tmp_path / "files/people/ada", "ada", False,
    )  # fmt: skip


async def test_a_listed_chat_of_which_no_platform_spoke_shares_nothing_yet(here: Place) -> None:
    """What HTTP or a job puts into it may be read by anybody."""
    assert (await here.scope_resolver.of_key("discord:9")).name == "chats/discord_9"


async def test_the_scope_of_the_workspace_is_one_for_people_too(here: Place, tmp_path: Path) -> None:
    here.scope_resolver = ScopeResolver(Scopes(tmp_path, kind="workspace", people=PEOPLE), store=here.store)

    assert [await here.ask(key) for key in (PHONE, OTHER, "telegram:3")] == ["workspace"] * 3
    assert await here.ask(LISTED, group=True) == "chats/telegram_-5"


@pytest.mark.parametrize(
    ("answered", "group", "scope"),
    [
        (PHONE, False, "people/ada"),
        ("telegram:3", False, "chats/telegram_3"),
        (LISTED, True, "chats/telegram_-5"),
        ("telegram:-7", True, "chats/telegram_-7"),
        ("", False, "chats/cron_j1"),
    ],
)
async def test_a_job_has_the_scope_of_the_chat_that_it_answers(
    here: Place, answered: str, group: bool, scope: str
) -> None:
    if answered:
        await here.ask(answered, group=group)

    assert await here.ask("cron:j1", answer_to=answered) == scope
    assert (await here.scope_resolver.of_key("cron:j1")).name == scope


async def test_a_job_that_answered_two_people_has_what_is_neithers(here: Place) -> None:
    """What it told one of them stands in its history: nothing of either goes in from then on."""
    for key in (PHONE, OTHER):
        await here.ask(key)
    assert await here.ask("cron:j1", answer_to=PHONE) == "people/ada"

    assert await here.ask("cron:j1", answer_to=OTHER) == "chats/cron_j1"
    assert await here.ask("cron:j1", answer_to=PHONE) == "chats/cron_j1"
    assert (await here.scope_resolver.of_key("cron:j1")).name == "chats/cron_j1"
    async with here.store.open(SessionKey("cron:j1")) as session:
        assert await session.end()
    assert (await here.scope_resolver.of_key("cron:j1")).name == "chats/cron_j1"
    assert await here.ask("cron:j1", answer_to=OTHER) == "people/bob"
    assert await here.ask("cron:j2", answer_to=PHONE) == "people/ada"
    assert await here.ask("cron:j2", answer_to=DESK) == "people/ada"


async def test_a_chat_whose_answer_somebody_else_reads_has_its_own(here: Place) -> None:
    for key in (PHONE, OTHER):
        await here.ask(key)

    assert await here.ask(DESK, answer_to=OTHER) == "chats/cli_direct"
    assert await here.ask(DESK, answer_to=PHONE) == "people/ada"


async def test_a_scope_lists_the_keys_that_it_holds(here: Place) -> None:
    for key, group in (
        (PHONE, False),
        (DESK, False),
        (OTHER, False),
        (LISTED, True),
        ("telegram:3", False),
    ):
        await here.ask(key, group=group)
    for job, answered in (("cron:a", PHONE), ("cron:b", LISTED), ("cron:c", "")):
        await here.ask(job, answer_to=answered)
    async with here.store.open(SessionKey(PHONE)) as session:
        await session.end()

    async def held(key: str) -> set[str]:
        return set(await here.scope_resolver.keys_of(await here.scope_resolver.of_key(key)))

    assert await held(DESK) == {PHONE, DESK, "cron:a"}
    assert await held(LISTED) == {LISTED, "cron:b"}
    assert await held(OTHER) == {OTHER}
    assert await held("cron:c") == {"cron:c"}
    assert await held("telegram:3") == {"telegram:3"}


@pytest.mark.parametrize("chat", ["group", None])
def test_a_job_whose_own_talk_was_a_groups_draws_on_no_persons(tmp_path: Path, chat: Chat | None) -> None:
    """A session of before, which knows that a group read along and not which one."""
    scopes = Scopes(tmp_path, kind="chat", people=PEOPLE)

    scope = scopes.of(Reader("cron:j", chat), Reader(PHONE, "direct", "telegram_1"), stem="cron_j")

    assert scope.name == ("chats/cron_j" if chat == "group" else "people/ada")


async def test_which_other_chats_are_a_persons_is_known_by_their_newest_sessions(here: Place) -> None:
    """Also once they have ended; a group that is listed and a chat that never spoke are none."""
    for key in (PHONE, DESK):
        await here.ask(key)
    await here.ask(LISTED, group=True)
    async with here.store.open(SessionKey(DESK)) as session:
        await session.end()
    here.store.layout.transcript("cli_direct").unlink()

    scope = await here.scope_resolver.of_key(PHONE)

    assert await here.scope_resolver.alike(scope, PHONE) == [DESK]
    assert await here.scope_resolver.alike(scope, "cron:j1") == [PHONE, DESK]
    assert await here.scope_resolver.alike(await here.scope_resolver.of_key(LISTED), LISTED) == []


# -- subagents: what the conversation has that started it, by its record alone -----------------------------


async def test_a_subagent_has_the_scope_of_its_parent(here: Place) -> None:
    """Once it is over it has no person's: nothing on record says any more who reads its result."""
    ada, group = await here.started(PHONE), await here.started(LISTED)

    scopes = [await here.lent(ada, PHONE), await here.lent(group, LISTED)]
    assert [(scope.name, scope.group) for scope in scopes] == [
        ("people/ada", False),
        ("chats/telegram_-5", True),
    ]
    (record,) = here.subagents.of(PHONE)
    here.subagents.told(record)
    assert (await here.lent(ada, PHONE)).group


async def test_a_parent_that_never_started_it_lends_nothing(here: Place) -> None:
    """Whatever its conversation says: it then has an empty scope of its own."""
    ada = await here.started(PHONE)
    await here.started(OTHER)

    for parent in (OTHER, "", "sub:x"):
        scope = await here.lent(ada, parent)
        assert (scope.name, scope.group) == (f"chats/{ada.replace(':', '_')}", True)


async def test_one_whose_result_another_chat_reads_sees_what_both_may(here: Place) -> None:
    await here.started(OTHER)

    assert (await here.lent(await here.started(PHONE, answer_to=OTHER), PHONE)).name == "chats/telegram_1"
