"""Every command of README and docs is typed, in the order of its page, and does what the page says.

A page is typed into one shell, whose machine is a folder: `/etc`, `/var`, `/opt` and the like lie below it,
and the program is forked from a process that has done its imports. What can be typed on a machine of its own
alone stands in ``NOT_HERE``, with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.docs import commands
from tests.docs.commands import Command, alike, same_shape
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.system import documented_places as places
from tests.system.typist import Typed, Typist

pytestmark = guarantee(
    "interfaces", "The documentation matches the program in every setting, route, command and example."
)

# The index, docs/README.md, has no commands.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("[a-z]*.md"))]
# Where the commands of a page are typed; every other page has none.
ALONE = (
    "README.md",
    "CONTRIBUTING.md",
    "chaos.md",
    "fuzzing.md",
    "mutants.md",
    "install.md",
    "systemd.md",
    "docker.md",
    "kubernetes.md",
)
SERVED = ("http.md", "chat.md", "configuration.md", "doctor.md", "interchange.md", "cron.md")
SERVED += ("backup.md", "upgrades.md")
PLATFORM = ("observability.md", "agents.md", "tools.md")
ONBOARD = ("onboard.md",)
BROKER = ("rabbitmq.md",)

SERVICE = (
    "acts on the services of the machine; tests/deploy/test_deb.py types such under a systemd of its own"
)
PACKAGES = "installs a package on the machine, or from a registry"
DOCKER = "needs a Docker that runs; tests/deploy/test_images.py reads what it would be given"
CLUSTER = "needs a cluster; tests/deploy/test_images.py reads what it would be given"
USERS = "makes, asks for or removes users and folders of the machine; tests/deploy/test_deb.py types it"
TESTS = "is how these tests are run"
# The beginnings of commands that are not typed here, and why.
NOT_HERE = {
    "sudo apt-get install": PACKAGES,
    "pipx install": PACKAGES,
    "pipx ensurepath": PACKAGES,
    "sudo PIPX_HOME=/opt/pipx": PACKAGES,
    "sudo systemctl": SERVICE,
    "systemctl": SERVICE,
    "sudo journalctl": SERVICE,
    "sudo systemd-sysusers": USERS,
    "sudo systemd-tmpfiles": USERS,
    "sudo userdel": USERS,
    "sudoedit": "opens the editor of a person",
    "sudo chat-gateway onboard": SERVICE,
    "make deb": "takes a minute; tests/deploy/test_deb.py builds the package",
    "docker": DOCKER,
    "export RABBITMQCTL=": DOCKER,
    "kubectl": CLUSTER,
    "make test": TESTS,
    "make check": TESTS,
    "make chaos": "takes a minute or more; tests/system/test_chaos.py runs it with a few kills",
    "make fuzz": "takes minutes; tests/fuzz/test_corpora.py reads what it found",
    "chat-gateway run --reset-state": "moves the state aside; tests/system/test_newer_state.py types it",
    "make mutants": "takes minutes; tests/mutants/test_mutants.py runs it over a module of its own",
}
# Commands within sentences that are not typed beside the daemon.
ELSEWHERE = {
    "chat-gateway run": "is typed alone",
    "chat-gateway run --reset-state": "moves the state aside; tests/system/test_newer_state.py types it",
    "chat-gateway run --role channels": "needs RabbitMQ; tests/system/test_broker_rights.py runs it",
    "chat-gateway run --role session": "needs RabbitMQ; tests/system/test_broker_rights.py runs it",
    "chat-gateway run --workers 4": "needs RabbitMQ; tests/system/test_workers.py runs such",
    "chat-gateway onboard": "is typed from nothing",
    "chat-gateway memory erase --person ada": "asks first; tests/system/test_erasing.py types it",
    "chat-gateway completion fish | source": "is for fish; tests/system/test_completion.py types it there",
}
# What runs until Ctrl-C.
FOREGROUND = ("make run", ".venv/bin/chat-gateway run", "chat-gateway run")
# What is typed behind a command that asks.
ANSWERS = {
    "chat-gateway chat": "hello\n",
    ".venv/bin/chat-gateway onboard": "echo\nnone\n\n",
    "chat-gateway onboard": "echo\nnone\n\n",
    "sudo rabbitmqctl add_user": "a-password\na-password\n",
    "sudo install -m 0600 /dev/stdin": places.TELEGRAM_TOKEN,
}


def reason(text: str) -> str:
    """Say why a command is not typed here; empty where it is."""
    return next((why for begin, why in NOT_HERE.items() if _begins(text, begin)), "")


def _begins(text: str, begin: str) -> bool:
    return text.startswith(begin) and not text[len(begin) :][:1].isalnum()


async def type_page(typist: Typist, path: Path) -> None:
    """Type all that a page says; fails at the first command that does something else."""
    for command in commands.typed(path):
        if reason(command.text):
            continue
        where = f"{path.name}:{command.line}: {typist.here(command.text)}"
        if command.text.split("  #")[0].strip() in FOREGROUND:
            done = await typist.leave_running(command.text)
            assert "ready" in done.err, f"{where}\n{done.err}"
            continue
        answer = next((said for begin, said in ANSWERS.items() if _begins(command.text, begin)), "")
        done = await typist.type(command.text, answer)
        assert done.code == 0, f"{where}\nexit {done.code}\n{done.out}{done.err}"
        if command.shown is not None:
            assert shows(typist, command, done), f"{where}\n{done.out}\n{command.shown}"


def shows(typist: Typist, command: Command, done: Typed) -> bool:
    """Say whether a command printed what stands below it."""
    if isinstance(command.shown, str):
        return same_shape(done.out, command.shown)
    told: Any = json.loads(done.out)
    places.learn(typist, command.text, told)
    return alike(json.loads(typist.on_page(done.out)), command.shown)


def test_every_page_has_its_place() -> None:
    """A page with commands is typed somewhere, and a command that is not typed is on a page."""
    typed = {path.name: commands.typed(path) for path in PAGES}
    texts = [command.text for found in typed.values() for command in found]

    assert {name for name, found in typed.items() if found} == {*ALONE, *SERVED, *PLATFORM, *ONBOARD, *BROKER}
    assert [begin for begin in NOT_HERE if not any(_begins(text, begin) for text in texts)] == []
    assert [begin for begin in ANSWERS if not any(_begins(text, begin) for text in texts)] == []
    assert set(ELSEWHERE) <= set().union(*map(commands.mentioned, PAGES))
    assert sum(not reason(text) for text in texts) > 100


async def test_on_a_machine_without_a_gateway(tmp_path: Path) -> None:
    for name in ALONE:
        async with places.checkout(tmp_path / name) as typist:
            await type_page(typist, path_of(name))


async def test_beside_a_daemon(tmp_path: Path) -> None:
    """Also what stands within sentences: whole commands, without a placeholder."""
    async with places.served(tmp_path) as typist:
        for name in SERVED:
            await type_page(typist, path_of(name))
        for text in sorted(set().union(*map(commands.mentioned, PAGES)) - set(ELSEWHERE)):
            done = await typist.type(text)
            if done.code == 2:
                # The name of a verb alone.
                done = await typist.type(f"{text} --help")
            assert done.code == 0, f"{text}\nexit {done.code}\n{done.out}{done.err}"


async def test_with_a_platform_a_model_and_tools(tmp_path: Path) -> None:
    async with places.with_a_bot(tmp_path) as typist:
        for name in PLATFORM:
            await type_page(typist, path_of(name))


async def test_from_nothing(tmp_path: Path) -> None:
    async with places.onboarding(tmp_path) as typist:
        await type_page(typist, path_of("onboard.md"))


async def test_with_a_broker(tmp_path: Path, broker: Broker) -> None:
    async with places.beside_a_broker(tmp_path, broker) as typist:
        await type_page(typist, path_of("rabbitmq.md"))


def path_of(name: str) -> Path:
    return next(path for path in PAGES if path.name == name)


def test_a_difference_is_seen() -> None:
    """Another value, another field, another order and another length; another word in a text."""
    shown = {"a": [1, {"b": "x…"}], "at": "…"}

    assert alike({"a": [1, {"b": "xy"}], "at": "now"}, shown)
    for told in (
        {"a": [2, {"b": "xy"}], "at": "now"},
        {"a": [1, {"b": "y"}], "at": "now"},
        {"a": [1], "at": "now"},
        {"at": "now", "a": [1, {"b": "xy"}]},
        {"a": [1, {"b": "xy"}], "at": "now", "c": 1},
    ):
        assert not alike(told, shown)
    assert same_shape("3 turns, 01KJ4VZZZZZZZZZZZZZZZZZZZZ\n", "17 turns, 01KJ4V…\n")
    assert not same_shape("3 turns\n", "3 runs\n")
    assert not same_shape("3 turns\n", "3 turns\nmore\n")
