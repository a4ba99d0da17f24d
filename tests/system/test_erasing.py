"""All that is kept of a chat or person is removed from every place, and no byte of it stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from session.store.places import kind_of
from tests.support.broker import Broker
from tests.support.harness import Daemon, ask, command, status
from tests.support.model_server import ModelServer
from tests.support.place import on, with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.erasing_place import ADA, KEY, configured, files, lived, neighbours, said, traces

PEOPLE = {"ada": [KEY, "cli:ada"]}
# In every run these places hold something of Ada, or the look for it would prove nothing.
PLACES = {"transcript", "archive", "original", "memory", "file", "media", "letter", "schedule", "pairing"}
TURNS = "chat_gateway_turns_total"
# By the lock a turn is fenced off, and by the journal no message is asked again.
NAMED = {f"state/keys/telegram_{ADA}.{suffix}" for suffix in ("lock", "log")}


@pytest.mark.parametrize("running", [True, False])
async def test_no_byte_of_a_person_stays(tmp_path: Path, running: bool) -> None:
    """Beside the daemon that answers her at this moment, or after it was killed; Bob's files stay."""
    async with TelegramServer() as server, ModelServer() as model:
        config = configured(model, server, people=PEOPLE)
        async with Daemon(tmp_path, config=config) as daemon:
            await lived(daemon, server, model, below="people/ada")
            assert {name for name, _ in files(tmp_path) if kind_of(name) is None} == set()
            held = {kind_of(name) for name, _ in traces(tmp_path)}
            assert held >= PLACES, held
            if not running:
                await daemon.kill()
            before = neighbours(tmp_path)

            code, printed = await command(
                tmp_path, "memory", "erase", "--person", "ada", "--yes", "--json", config=config
            )

            assert code == 0
            assert traces(tmp_path) == []
            assert neighbours(tmp_path) == before
            (report,) = json.loads(printed)
            assert {row["kind"] for row in report["removed"]} >= PLACES | {"usage", "typed", "recall"}
            assert all(row["count"] for row in report["removed"])
            if not running:
                assert {name for name, data in files(tmp_path) if KEY.encode() in data} <= NAMED
                await daemon.start()
            assert await said(server, ADA, "a new day") == "stub: a new day"
            assert "sesame" not in json.dumps(model.turns[-1].messages).replace("sesame (", "")
            assert await daemon.stop() == 0
        assert [name for name, _ in traces(tmp_path) if name != f"sessions/telegram_{ADA}.jsonl"] == []


async def test_no_byte_of_a_chat_stays_beside_a_broker(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """What waits in the lanes of the daemon goes, too, and so does what is parked in the broker."""
    async with TelegramServer() as server, ModelServer() as model:
        config = configured(model, server, **on(broker, broker_name))
        async with Daemon(tmp_path, config=config) as daemon:
            await lived(daemon, server, model, below=f"chats/telegram_{ADA}")
            before = neighbours(tmp_path)

            code, printed = await command(tmp_path, "memory", "erase", KEY, "--yes", "--json", config=config)

            assert code == 0
            # The terminal is another chat, and what is typed there is nobody's here.
            elsewhere = ("state/chat_history", "sessions/cli_ada.jsonl", "memory/chats/cli_ada")
            left = [(name, at) for name, at in traces(tmp_path) if not name.startswith(elsewhere)]
            assert left == []
            assert neighbours(tmp_path) == before
            (report,) = json.loads(printed)
            assert {row["kind"] for row in report["removed"]} >= PLACES
            code, parked = await command(tmp_path, "parked", "list", "--json", config=config)
            assert (code, json.loads(parked)) == (0, [])
            assert await said(server, ADA, "a new day") == "stub: a new day"


async def test_no_byte_of_a_person_stays_whose_chats_are_answered_by_two_daemons(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """A turn runs in each at this moment, and more waits; both hear of it, and the chats go on."""
    # Of two partitions each daemon has one, and a chat lies in each.
    chats = ["web:ada2", "web:ada"]
    config = on(broker, broker_name, partitions=2, people={"ada": chats})
    async with ModelServer() as model:
        config |= with_model(model)
        async with (
            Daemon(tmp_path, role="session", config=config) as first,
            Daemon(tmp_path, role="session", config=config) as second,
        ):
            by = await shared_out((first, second), chats)
            tool = 'write {"path": "sesame.txt", "content": "sesame written"}'
            async with httpx.AsyncClient(base_url=second.url, timeout=60) as http:
                for key in chats:
                    assert await ask(second, key, "0", f"sesame said [[tool:{tool}]]") is not None
                    for number, text in enumerate(("[[hang]] sesame running", "sesame waiting"), 1):
                        body = {"key": key, "id": str(number), "text": text}
                        assert (await http.post("/v1/messages", json=body)).status_code == 202
            for daemon, key in zip(by, chats, strict=True):
                await until(lambda daemon=daemon, key=key: works_on(daemon, key))
            assert traces(tmp_path)

            code, printed = await command(
                tmp_path, "memory", "erase", "--person", "ada", "--yes", "--json", config=config
            )

            assert code == 0
            assert traces(tmp_path) == []
            assert len(json.loads(printed)) == 2
            for daemon in (first, second):
                assert (await status(daemon))["lanes"] == []
            for key in chats:
                answer = await ask(second, key, "new", "a new day")
                assert answer is not None
                assert answer["reply"] == "stub: a new day"
                assert "sesame" not in json.dumps(model.turns[-1].messages)
            await first.stop()
            await second.stop()


async def shared_out(daemons: Sequence[Daemon], keys: Sequence[str]) -> list[Daemon]:
    """Say something in each chat until no daemon answers two of them; return which one answers each."""
    number = 0

    async def answered_by(key: str) -> Daemon:
        before = [await turns_of(daemon) for daemon in daemons]
        assert await ask(daemons[0], key, f"before-{number}", "whose is this chat?") is not None

        async def one_more() -> Daemon | None:
            after = [await turns_of(daemon) for daemon in daemons]
            told = zip(daemons, before, after, strict=True)
            return next((daemon for daemon, was, now in told if now > was), None)

        by: Daemon = await until(one_more)
        return by

    async with asyncio.timeout(120):
        while True:
            number += 1
            by = [await answered_by(key) for key in keys]
            if len(set(map(id, by))) == len(keys):
                return by


async def turns_of(daemon: Daemon) -> float:
    """Count the turns that a daemon has ended."""
    async with httpx.AsyncClient(timeout=30) as client:
        text = (await client.get(f"{daemon.url}/metrics")).text
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == TURNS)


async def works_on(daemon: Daemon, key: str) -> bool:
    """Say whether a turn of the key runs in a daemon, and a message waits behind it."""
    lanes = (await status(daemon))["lanes"]
    return any(lane["key"] == key and lane["id"] is not None and lane["waiting"] == 1 for lane in lanes)


@pytest.mark.parametrize("point", ["clear.before:2", "clear.after:1", "erase.before:1", "erase.after:1"])
async def test_a_daemon_that_is_killed_in_the_midst_ends_it_at_its_next_start(
    tmp_path: Path, point: str
) -> None:
    """Before it takes the letter that comes then: what is said anew stays."""
    async with ModelServer() as model:
        config = with_model(model, people={"ada": ["web:ada", "cli:ada"]})
        async with Daemon(tmp_path, config=config, kill_at=point) as daemon:
            tool = 'write {"path": "sesame.txt", "content": "sesame written"}'
            for key in ("web:ada", "cli:ada"):
                assert await ask(daemon, key, "1", f"sesame [[tool:{tool}]]") is not None
            async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
                with pytest.raises(httpx.HTTPError):
                    await http.post("/clear-session", json={"person": "ada", "everything": True})

            await daemon.reborn()

            assert traces(tmp_path) == []
            answer = await ask(daemon, "web:ada", "2", "a new day")
            assert answer is not None
            assert answer["reply"] == "stub: a new day"
            assert list((tmp_path / "state" / "erasing").iterdir()) == []
