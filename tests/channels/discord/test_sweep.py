"""What one sweep reads and asks for, and what counts as a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from channels.discord.ingress import MAX_CHANGES, MAX_WAITING
from channels.discord.messages import snowflake_at
from channels.errors import CredentialsRefused
from channels.pairing import Pairing
from tests.channels.discord.discord_place import book
from tests.channels.discord.sweep_place import Rig, old, rig
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import EPHEMERAL
from tests.support.discord_world import Channel as Place
from tests.support.until import until


async def test_it_reads_what_has_messages_and_news(server: DiscordServer, state: Path) -> None:
    """Text, voice, announcements, stages and threads, and each once; what is read has no news any more."""
    guild = server.guild("home")
    places = [server.channel(guild, f"k{kind}", kind=kind) for kind in (0, 2, 5, 13, 1, 3, 4, 6, 12, 14, 15)]
    empty = server.channel(guild, "empty")
    places.append(server.thread(places[0]))
    for place in places:
        old(server, place, place.name)
    async with rig(server, state) as rigged:
        assert not await rigged.sweep()
        read = [places[at].id for at in (0, 1, 2, 3, -1)]
        assert rigged.read() == sorted(read)
        assert empty.id not in rigged.cursors.known
        assert len(rigged.beats) == 1
        assert book(state, server)["swept_at"] is not None

        assert not await rigged.sweep()
        assert rigged.read() == []
        old(server, places[0], "more", seconds=60)
        assert not await rigged.sweep()
        assert rigged.read() == [places[0].id]
    assert len(rigged.beats) == 3


async def test_what_is_young_is_looked_at_again(server: DiscordServer, general: Place, state: Path) -> None:
    """Ids are made on many machines: what came ten seconds before the last sweep may have a neighbour."""
    other = server.channel(general.guild, "other")  # type: ignore[arg-type]
    async with rig(server, state) as rigged:
        server.write(general, "now", live=False)
        old(server, other, seconds=30)
        await rigged.sweep()
        assert rigged.read() == sorted([general.id, other.id])
        await rigged.sweep()
        assert rigged.read() == [general.id]


async def test_a_channel_of_unknown_shape_costs_itself(server: DiscordServer, state: Path) -> None:
    guild = server.guild("home")
    first, odd, last = (server.channel(guild, name) for name in ("first", "odd", "last"))
    for place in (first, odd, last):
        old(server, place)
    odd.last_message_id = "no number"
    async with rig(server, state) as rigged:
        assert not await rigged.sweep()
        assert rigged.read() == [first.id, last.id]


async def test_what_was_read_before_a_restart_is_not_read_again(
    server: DiscordServer, general: Place, state: Path
) -> None:
    old(server, general)
    for read in ([general.id], []):
        async with rig(server, state) as rigged:
            assert not await rigged.sweep()
            assert rigged.read() == read


@pytest.mark.parametrize(("status", "soon"), [(403, False), (503, True)])
@pytest.mark.parametrize("route", ["/guilds/*/channels", "/guilds/*/threads/active"])
async def test_a_list_that_cannot_be_had_leaves_the_sweep_open(
    server: DiscordServer, general: Place, state: Path, route: str, status: int, soon: bool
) -> None:
    """What could be read is read; it is tried again soon where that may help."""
    ada = server.dm("ada")
    old(server, ada)
    server.fail("GET", route, status=status, html=True, times=None)
    async with rig(server, state, request_timeout_s=1.0) as rigged:
        await rigged.cursors.remember(ada.id, server.user("ada").id)

        assert await rigged.sweep() is soon

        assert rigged.read() == [ada.id]
        assert rigged.beats == []
    assert book(state, server)["swept_at"] is None


@pytest.mark.parametrize(
    ("method", "route", "whole"),
    [
        ("GET", "/channels/*/messages", False),
        ("GET", "/channels/12345", True),
        ("POST", "/users/@me/channels", False),
    ],
    ids=["channel", "thread", "person"],
)
async def test_what_does_not_answer_leaves_the_sweep_open(
    server: DiscordServer, general: Place, state: Path, method: str, route: str, whole: bool
) -> None:
    old(server, general)
    fault = server.fail(method, route, status=503, html=True, times=None)
    async with rig(server, state, allow_from=(server.user("ada").id,), request_timeout_s=0.5) as rigged:
        await rigged.cursors.advance("12345", snowflake_at(datetime.now(UTC)))
        assert await rigged.sweep(whole=whole)
        assert rigged.beats == []
        fault.times = 0
        assert not await rigged.sweep()
        assert len(rigged.beats) == 1


async def test_before_the_gateway_told_of_servers_only_people_are_heard(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """That is no complete sweep, and nothing to try again for; without groups it is all that there is."""
    ada = server.dm("ada")
    old(server, general)
    old(server, ada)
    async with rig(server, state) as rigged:
        await rigged.cursors.remember(ada.id, server.user("ada").id)
        rigged.view.guilds = None
        assert not await rigged.sweep(whole=True)
        assert (rigged.read(), rigged.beats) == ([ada.id], [])

    async with rig(server, state, groups="off") as rigged:
        assert not await rigged.sweep()
        assert (rigged.read(), rigged.beats) == ([ada.id], [1])
        assert rigged.asked("GET", "/guilds/*/channels") == []


async def test_a_whole_sweep_looks_for_what_no_list_shows(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Archived threads, for a week; those that are gone are forgotten, those that are shut are not."""
    ada = server.dm("ada")
    threads = {
        name: server.thread(general, name) for name in ("open", "news", "none", "shut", "gone", "ancient")
    }
    for name, thread in threads.items():
        old(server, thread, "first", hours=1)
        # Whoever writes into one opens it again.
        thread.archived = name != "open"
    async with rig(server, state) as rigged:
        await rigged.cursors.remember(ada.id, server.user("ada").id)
        for name, thread in threads.items():
            days = 7.1 if name == "ancient" else 6.9
            at = snowflake_at(datetime.now(UTC) - timedelta(days=days))
            await rigged.cursors.advance(
                thread.id, int(thread.last_message_id or 0) if name == "none" else at
            )
        await rigged.cursors.advance("12345", snowflake_at(datetime.now(UTC)))
        server.fail("GET", f"/channels/{threads['shut'].id}", status=403, times=None)
        server.fail("GET", f"/channels/{threads['gone'].id}", status=404, times=None)

        assert not await rigged.sweep()
        assert rigged.asked("GET", "/channels/*") == []
        assert not await rigged.sweep(whole=True)

        looked_up = [threads[name].id for name in ("news", "none", "shut", "gone")]
        assert rigged.asked("GET", "/channels/*") == sorted([*looked_up, "12345"])
        assert rigged.read() == sorted([threads["news"].id, ada.id])
        assert threads["gone"].id not in rigged.cursors.known
        assert threads["shut"].id in rigged.cursors.known


def told(server: DiscordServer, thread: Place) -> dict[str, Any]:
    """What the gateway shows of each message of ada in a thread."""
    assert thread.guild is not None
    author = {"id": server.user("ada").id, "username": "ada"}
    return {"channel_id": thread.id, "guild_id": thread.guild.id, "author": author, "type": 0}


async def test_a_thread_is_not_judged_before_its_channel_is_known(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Where only the channel is allowed, a message of its thread would be dismissed for good."""
    thread = server.thread(general, "aside")
    asked = f"/channels/{thread.id}"
    fault = server.fail("GET", asked, status=503, html=True, times=None)
    raw = told(server, thread) | {"id": server.write(thread, "hello", live=False), "content": "hello"}
    async with rig(server, state, request_timeout_s=0.1) as rigged:
        rigged.ingress.message(raw)
        await server.until(lambda: fault.used >= 12)
        assert rigged.record.texts() == []
        fault.times = 0

        arrival = await rigged.record.text("hello")

    assert general.id in arrival.group_ids


async def test_a_thread_that_may_not_be_looked_up_is_asked_for_again(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Its messages are taken as those of a channel; a refusal now says nothing of the next message."""
    thread = server.thread(general, "aside")
    server.fail("GET", f"/channels/{thread.id}", status=403, times=2)
    raw = told(server, thread)
    async with rig(server, state) as rigged:
        rigged.ingress.message(raw | {"id": server.write(thread, "one", live=False), "content": "one"})
        first = await rigged.record.text("one")
        rigged.ingress.message(raw | {"id": server.write(thread, "two", live=False), "content": "two"})
        second = await rigged.record.text("two")

    assert (general.id in first.group_ids, general.id in second.group_ids) == (False, True)


async def test_of_many_people_the_newest_are_heard_each_time_and_all_in_turn(
    server: DiscordServer, state: Path
) -> None:
    """A hundred in one sweep; all of them in a whole one."""
    places = [server.dm(f"p{number}") for number in range(120)]
    ids = [place.id for place in places]
    async with rig(server, state) as rigged:
        for number, place in enumerate(places):
            await rigged.cursors.remember(place.id, server.user(f"p{number}").id)
            at = datetime.now(UTC) - timedelta(hours=number + 1)
            await rigged.cursors.advance(place.id, snowflake_at(at))
        await rigged.sweep()
        assert rigged.read() == sorted(ids[:100])
        await rigged.sweep()
        assert rigged.read() == sorted([*ids[:50], *ids[100:], *ids[50:80]])
        await rigged.sweep()
        assert rigged.read() == sorted([*ids[:50], *ids[80:120], *ids[50:60]])
        await rigged.sweep(whole=True)
        assert rigged.read() == sorted(ids)
        for place in places[101:]:
            rigged.cursors.forget(place.id)
        await rigged.sweep()
        assert len(rigged.read()) == 100
        rigged.cursors.forget(ids[100])
        await rigged.sweep()
        assert rigged.read() == sorted(ids[:100])


async def test_who_may_write_is_asked_for_once(server: DiscordServer, state: Path) -> None:
    """Who is listed by number, and who was let in; who is refused is not asked for again."""
    ada, bob, eve = (server.user(name).id for name in ("ada", "bob", "eve"))
    pairing = Pairing(state)
    code = pairing.ask("discord", bob, kind="person", name="bob", message_id="discord:1")
    assert code is not None
    pairing.approve(code)
    async with rig(server, state, allow_from=(ada, "telegram-name", "٣")) as rigged:
        assert not await rigged.sweep()
        assert len(rigged.asked("POST", "/users/@me/channels")) == 2
        assert set(rigged.cursors.direct.values()) == {ada, bob}
        assert set(book(state, server)["direct"].values()) == {ada, bob}
        assert rigged.read() == sorted(server.dm(name).id for name in ("ada", "bob"))
        assert not await rigged.sweep()
        assert rigged.asked("POST", "/users/@me/channels") == []

    fault = server.fail("POST", "/users/@me/channels", status=403, times=None)
    async with rig(server, state, allow_from=(ada, eve)) as rigged:
        assert not await rigged.sweep()
        assert len(rigged.asked("POST", "/users/@me/channels")) == 1
        assert len(rigged.beats) == 1
        fault.times = 0
        assert not await rigged.sweep()
        assert rigged.asked("POST", "/users/@me/channels") == []


@pytest.mark.parametrize(
    ("method", "route"),
    [("GET", "/guilds/*/channels"), ("POST", "/users/@me/channels"), ("GET", "/channels/12345")],
)
async def test_a_refused_token_ends_the_sweep(
    server: DiscordServer, general: Place, state: Path, method: str, route: str
) -> None:
    """It concerns the whole adapter, wherever it is met."""
    server.fail(method, route, status=401, times=None)
    async with rig(server, state, allow_from=(server.user("ada").id,)) as rigged:
        await rigged.cursors.advance("12345", snowflake_at(datetime.now(UTC)))
        with pytest.raises(ExceptionGroup) as caught:
            await rigged.sweep(whole=True)
    assert caught.value.subgroup(CredentialsRefused) is not None


async def test_where_nothing_may_be_read_back_is_said_once(
    server: DiscordServer, general: Place, state: Path
) -> None:
    old(server, general)
    with structlog.testing.capture_logs() as logs:
        async with rig(server, state) as rigged:
            rigged.view.closed.add(general.id)
            for _ in range(2):
                await rigged.sweep()
                rigged.cursors.forget(general.id)
    assert [each["channel"] for each in logs if each["event"] == "history.forbidden"] == [general.id]


@asynccontextmanager
async def swept(rigged: Rig) -> AsyncIterator[None]:
    """Let it sweep by itself."""
    task = asyncio.create_task(rigged.sweeper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def looks(server: DiscordServer, channel: str) -> Callable[[], int]:
    return lambda: sum(call.path == f"/channels/{channel}" for call in server.calls)


async def test_the_first_sweep_waits_until_it_is_wanted_or_patience_ends(
    server: DiscordServer, general: Place, state: Path
) -> None:
    async with rig(server, state, patience_s=600.0, sweep_s=600.0) as rigged, swept(rigged):
        await asyncio.sleep(0.02)
        assert rigged.beats == []
        rigged.sweeper.want()
        await until(lambda: len(rigged.beats) == 1)
        rigged.sweeper.want()
        await until(lambda: len(rigged.beats) == 2)
    async with rig(server, state, patience_s=0.01, sweep_s=600.0) as rigged, swept(rigged):
        await until(lambda: len(rigged.beats) == 1)


async def test_a_whole_sweep_is_made_until_it_is_complete_and_when_it_is_wanted(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The regular ones between look up nothing."""
    fault = server.fail("GET", "/channels/12345", status=503, html=True, times=None)
    async with rig(server, state, patience_s=0.01, sweep_s=0.02, request_timeout_s=0.2) as rigged:
        await rigged.cursors.advance("12345", snowflake_at(datetime.now(UTC)))
        looked = looks(server, "12345")
        async with swept(rigged):
            await until(lambda: fault.used >= 2)
            assert rigged.beats == []
            fault.status = 403
            await until(lambda: len(rigged.beats) >= 1)
            before, beats = looked(), len(rigged.beats)
            await until(lambda: len(rigged.beats) >= beats + 3)
            assert looked() == before
            rigged.sweeper.want()
            await until(lambda: looked() == before + 1)
            beats = len(rigged.beats)
            await until(lambda: len(rigged.beats) >= beats + 3)
            assert looked() == before + 1


async def test_what_did_not_answer_is_tried_again_within_seconds(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """However long the pause between two sweeps is otherwise."""
    fault = server.fail("GET", "/guilds/*/channels", status=503, html=True, times=None)
    async with (
        rig(server, state, patience_s=0.01, sweep_s=600.0, request_timeout_s=0.2) as rigged,
        swept(rigged),
    ):
        await until(lambda: fault.used >= 1)
        fault.times = 0
        await until(lambda: len(rigged.beats) == 1)
        assert len(server.calls) < 50


EDITED = {"edited_timestamp": "2026-01-01T00:00:00+00:00"}


def shown(server: DiscordServer, place: Place, number: int, **more: Any) -> dict[str, Any]:
    """A message as the gateway shows it."""
    author = {"id": server.user("ada").id, "username": "ada"}
    found = {"id": str(number), "author": author, "content": f"text {number}", "type": 0}
    return {"channel_id": place.id, "guild_id": place.guild.id, **found, **more}  # type: ignore[union-attr]


async def test_changes_are_taken_up_to_a_bound(server: DiscordServer, general: Place, state: Path) -> None:
    """Beyond it they are lost, which the log says once; links that were unfolded take nobody's place."""
    with structlog.testing.capture_logs() as logs:
        async with rig(server, state) as rigged:
            rigged.record.gate.clear()
            for number in range(1, 2 * MAX_CHANGES):
                rigged.ingress.edited(shown(server, general, number))
            rigged.ingress.edited(shown(server, general, 1, **EDITED))
            for number in range(2, 2 * MAX_CHANGES, 2):
                rigged.ingress.edited(shown(server, general, number, **EDITED))
                rigged.ingress.deleted(shown(server, general, number + 1))
            rigged.record.gate.set()
            # Whatever was taken stands before this one.
            await rigged.ingress.sweep(rigged.place(general))
            taken = len(rigged.record.arrivals)
            rigged.ingress.edited(shown(server, general, 9_999_999, **EDITED))
            await rigged.record.text("text 9999999")

    assert rigged.record.texts()[0] == "text 1"
    assert MAX_WAITING < taken <= MAX_CHANGES
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["changes.dropped"]


async def test_a_command_beyond_the_bound_is_answered_at_once(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Who gave it reads that it was not taken, and alone."""
    server.interactions.deadline_s = 60.0
    async with rig(server, state) as rigged:
        rigged.record.gate.clear()
        for number in range(1, MAX_CHANGES + 10):
            rigged.ingress.edited(shown(server, general, number, **EDITED))
        command = server.interact("help", channel=general)
        raw = {"type": 2, "token": command.token, "application_id": server.application_id}
        raw |= {"data": {"name": "help", "type": 1}, "member": {"user": {"id": "7", "username": "ada"}}}
        rigged.ingress.interaction(shown(server, general, int(command.id)) | raw)
        await server.until(lambda: command.acked)
        rigged.record.gate.set()
        await rigged.ingress.sweep(rigged.place(general))

    assert "/help" not in rigged.record.texts()
    assert command.original is not None
    assert command.original.flags & EPHEMERAL
    assert "try again" in command.answers[0].lower()
