"""The command line finds the service of the machine, and names the file and workspace it uses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.finding import SERVICE_FILE, SERVICE_WORKSPACE
from tests.gateway.service_place import UID, strangers_files
from tests.support.harness import ROOT, Daemon
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA

HOME = Path("/var/lib/home")
# A machine's own /etc and /var/lib, for the processes of one test.
_MOUNTS = """\
mount --make-rprivate /
mount -t tmpfs box "$1"
mkdir "$1/upper" "$1/work" "$1/lib"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mount --bind "$1/lib" /var/lib
rm -rf /etc/chat-gateway /etc/credstore
install -d -m 0750 /etc/chat-gateway
install -d -m 0700 /etc/credstore
install -d -m 0700 -o "$2" -g "$2" /var/lib/chat-gateway
install -d -m 0755 /var/lib/home
echo ok
exec sleep infinity
"""


class Machine:
    """Runs commands in the mount namespace of a holder process."""

    def __init__(self, holder: int) -> None:
        self.enter = ("nsenter", "--target", str(holder), "--mount", "--")
        self.root = Path(f"/proc/{holder}/root")
        self.home = self.root / HOME.relative_to("/")

    def words(self, *args: str, user: bool = False) -> list[str]:
        module = ("-m", "tests.support.service_victim", str(UID)) if user else ("-m", "gateway")
        return [*self.enter, "env", "-C", str(HOME), sys.executable, *module, *args]

    async def told(self, *args: str, code: int = 0, user: bool = False, **env: str) -> tuple[str, str]:
        """Run a verb as root, or as another user; return its stdout and stderr."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("CHAT_GATEWAY_")}
        own |= {"HOME": str(HOME), "PYTHONPATH": str(ROOT), **env}
        process = await asyncio.create_subprocess_exec(
            *self.words(*args, user=user), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own
        )
        out, err = await process.communicate()
        assert process.returncode == code, (args, out, err)
        return out.decode(), err.decode()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("only root can have mounts of its own")
    box = tmp_path / "box"
    box.mkdir()
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", _MOUNTS, "sh", str(box), str(UID)], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"ok\n":
            pytest.skip("this machine allows no mounts")
        yield Machine(holder.pid)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def configured(machine: Machine, server: TelegramServer) -> None:
    file = machine.root / SERVICE_FILE.relative_to("/")
    file.write_text(
        f'[channels.telegram]\nenabled = true\nbase_url = "{server.base_url}"\n'
        f'base_file_url = "{server.base_file_url}"\npoll_timeout_s = 1\n'
    )
    (machine.root / "etc/credstore/chat-gateway.channels.telegram.token").write_text(f"{server.token}\n")
    (machine.root / "etc/chat-gateway/environment").write_text(
        '# of the unit\nCHAT_GATEWAY_TIMEZONE="Asia/Tokyo"\n'
    )


async def test_the_command_that_the_bot_names_works(machine: Machine) -> None:
    """Root without a file of its own works on the service, and makes no second workspace."""
    async with TelegramServer() as server:
        configured(machine, server)
        daemon = Daemon(
            Path(SERVICE_WORKSPACE),
            config={"channels.telegram.token": server.token, "http.port": 0},
            verb=("--config", str(SERVICE_FILE), "run"),
            prefix=(*machine.enter, "env", f"PYTHONPATH={ROOT}"),
            program=("tests.support.service_victim", str(UID)),
        )
        # It reads what root gives it, as the real one is given it by its group.
        os.chown(machine.root / "etc/chat-gateway", 0, UID)
        async with daemon:
            server.write(ADA, "let me in")
            said = (await server.said(ADA)).text
            command = re.search(r"^sudo chat-gateway (pairing approve [A-Z0-9]{8})$", said, re.MULTILINE)
            assert command is not None, said
            listed, place = await machine.told("pairing", "list")
            _, approved = await machine.told(*command[1].split())
            status, _ = await machine.told("status")
            shown = json.loads((await machine.told("status", "--json"))[0])
            found = json.loads((await machine.told("doctor", "--json"))[0])
            answer, _ = await machine.told("chat", "-m", "hello")
            wrong = await machine.told("pairing", "approve", "AAAAAAAA", code=1)
            config, _ = await machine.told("config", "show", "--json")
            server.write(ADA, "hello")
            await server.said(ADA, lambda sent: sent.text == "echo: hello")
            assert f"workspace: {SERVICE_WORKSPACE}" in daemon.log.decode()
            assert await daemon.stop() == 0
        strangers = strangers_files(machine.root / SERVICE_WORKSPACE[1:])

    assert str(ADA) in listed
    assert "is approved" in approved
    for words in (place, status, wrong[1]):
        assert f"configuration: {SERVICE_FILE}" in words
        assert f"workspace: {SERVICE_WORKSPACE}" in words
    assert "gateway: ready" in status
    assert (shown["workspace"], shown["configuration"]) == (SERVICE_WORKSPACE, str(SERVICE_FILE))
    texts = {check["name"]: check["text"] for check in found}
    assert texts["configuration"] == f"workspace {SERVICE_WORKSPACE}, read from {SERVICE_FILE}"
    # The secret of the service was found, and is taken.
    assert {check["name"]: check["level"] for check in found}["telegram token"] == "ok"
    assert answer == "echo: hello\n"
    # The unit's own variables count for the verbs, too.
    assert json.loads(config)["timezone"] == "Asia/Tokyo"
    assert strangers == []
    assert not (machine.home / ".chat-gateway").exists()


async def test_a_file_that_is_not_read_is_named(machine: Machine) -> None:
    """Another user may not read the service's file; root's own file goes before it; each is said."""
    home = machine.home
    async with TelegramServer() as server:
        configured(machine, server)
        os.chown(home, UID, UID)
        _, closed = await machine.told("chat", "-m", "hello", user=True)
        own = home / ".config/chat-gateway/config.toml"
        own.parent.mkdir(parents=True)
        own.write_text('timezone = "Europe/Berlin"\n')
        (home / "chat-gateway.toml").write_text('timezone = "UTC"\n')
        checked, shadowed = await machine.told("config", "check")
        (home / "chat-gateway.toml").unlink()
        path, behind = await machine.told("config", "path")
        refused = await machine.told("--config", str(HOME / "none.toml"), "status", code=78)

    assert (
        f"{SERVICE_FILE} is not read: Permission denied; to use the service's configuration: sudo" in closed
    )
    assert ".config/chat-gateway/config.toml is not read: chat-gateway.toml is used instead" in shadowed
    assert f"{SERVICE_FILE} is not read: chat-gateway.toml is used instead" in shadowed
    assert checked.startswith(f"{HOME}/chat-gateway.toml: no problems")
    assert path.strip().endswith(".config/chat-gateway/config.toml")
    assert f"{SERVICE_FILE} is not read" in behind
    assert "none.toml: cannot be read" in refused[1]
