"""All that is kept of a chat or person is removed from every place, and no byte of it stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from ulid import ULID

from session.store.places import kind_of
from tests.support.broker import Broker
from tests.support.gateway_team import worker_for
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command, status
from tests.support.model_server import ModelServer
from tests.support.place import on, with_model, write
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.erasing_place import ADA, KEY, configured, files, lived, neighbours, said, traces

pytestmark = guarantee(
    "privacy", "The erasure of a chat or person leaves no byte of it and touches nothing of others."
)

PEOPLE = {"ada": [KEY, "cli:ada"]}
# In every run these places hold something of Ada, or the look for it would prove nothing.
PLACES = {"transcript", "archive", "original", "memory", "file", "media", "letter", "schedule"}
# By the journal no message is asked again.
NAMED = {f"state/keys/telegram_{ADA}.lock", "state/gateway.db"}

# As a command does it that goes on: once the first of its files is gone, its folder is a link. It is told so
# by the kernel (inotify, IN_DELETE), and swaps once.
SWAPPING = """
import ctypes, os, sys
home, outside = sys.argv[1:]
place = f"{home}/zz"
os.makedirs(place)
for name in os.listdir(outside):
    open(f"{place}/{name}", "a").close()
libc = ctypes.CDLL(None)
told = libc.inotify_init()
assert libc.inotify_add_watch(told, place.encode(), 0x200) >= 0
print("ready", flush=True)
os.read(told, 4096)
os.rename(place, f"{home}/old-{os.getpid()}")
os.symlink(outside, place)
"""


@guarantee("privacy", "Export and erasure cover every kind of file in a workspace.")
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
            assert {row["kind"] for row in report["removed"]} >= PLACES | {
                "usage",
                "typed",
                "recall",
                "pairing",
            }
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


async def test_no_byte_of_a_person_stays_whose_chats_are_answered_by_two_workers(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """A turn runs in each at this moment, and more waits; both hear of it, and the chats go on."""
    # Of two partitions a chat lies in each.
    chats = ["web:ada2", "web:ada"]
    config = on(broker, broker_name, partitions=2, people={"ada": chats}, **{"limits.workers": 2})
    async with ModelServer() as model:
        config |= with_model(model)
        async with Daemon(tmp_path, role="session", config=config) as daemon:
            assert len({await worker_for(daemon, key) for key in chats}) == 2
            tool = 'write {"path": "sesame.txt", "content": "sesame written"}'
            async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
                for key in chats:
                    assert await ask(daemon, key, "0", f"sesame said [[tool:{tool}]]") is not None
                    for number, text in enumerate(("[[hang]] sesame running", "sesame waiting"), 1):
                        body = {"key": key, "id": str(number), "text": text}
                        assert (await http.post("/v1/messages", json=body)).status_code == 202
            await until(lambda: all_busy(daemon, chats))
            assert traces(tmp_path)

            code, printed = await command(
                tmp_path, "memory", "erase", "--person", "ada", "--yes", "--json", config=config
            )

            assert code == 0
            assert traces(tmp_path) == []
            assert len(json.loads(printed)) == 1
            assert (await status(daemon))["lanes"] == []
            for key in chats:
                answer = await answer_to(daemon, key, "new", "a new day")
                assert answer["reply"] == "stub: a new day"
                assert "sesame" not in json.dumps(model.turns[-1].messages)
            await daemon.stop()


async def all_busy(daemon: Daemon, keys: Sequence[str]) -> bool:
    """Say whether a turn runs in each chat, and a message waits behind it."""
    lanes = (await status(daemon))["lanes"]
    busy = [lane["key"] for lane in lanes if lane["id"] is not None and lane["waiting"] == 1]
    return sorted(busy) == sorted(keys)


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
            answer = await answer_to(daemon, "web:ada", "2", "a new day")
            assert answer["reply"] == "stub: a new day"
            assert list((tmp_path / "state" / "erasing").iterdir()) == []


async def test_an_erasure_beside_a_command_that_swaps_its_folder_takes_nothing_of_others(
    tmp_path: Path,
) -> None:
    """A link to the transcripts of all chats stands in its place before the erasure is through with it.

    What the daemon refuses is said, and not done beside it.
    """
    home, sessions = tmp_path / "files/chats/web_mallory", tmp_path / "sessions"
    tool = 'write {"path": "mine.txt", "content": "mine"}'
    body = {"key": "web:mallory", "everything": True}
    async with Daemon(tmp_path) as daemon, httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        await ask(daemon, "web:victim", "1", "good day")
        # A file stands where the erasure writes what it owes.
        (tmp_path / "state/erasing").write_text("")
        refused, printed = await command(tmp_path, "memory", "erase", "web:victim", "--yes")
        (tmp_path / "state/erasing").unlink()
        assert refused != 0
        assert "another chat-gateway" not in printed
        assert (sessions / "web_victim.jsonl").exists()
        for at in range(200):
            write(sessions / f"web_victim{at}.jsonl", (sessions / "web_victim.jsonl").read_text())
        before = {path.name: path.read_bytes() for path in sessions.iterdir()}
        for _ in range(2):
            await ask(daemon, "web:mallory", str(ULID()), f"hello [[tool:{tool}]]")
            attack = [sys.executable, "-c", SWAPPING, str(home), str(sessions)]
            with subprocess.Popen(attack, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                answer = await http.post("/clear-session", json=body)
            # It may have to be asked once more: something appeared at the last moment.
            assert answer.status_code in (200, 503), answer.text
            assert (await http.post("/clear-session", json=body)).status_code == 200
            assert {path.name: path.read_bytes() for path in sessions.iterdir()} == before

        assert not home.exists()
        assert await ask(daemon, "web:victim", "2", "still here?") is not None
