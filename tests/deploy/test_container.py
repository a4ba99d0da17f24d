"""The container image, built and run: as nobody, on files that it cannot change. ``make test-image``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containers import BASE, IMAGE, Containers, lacking
from tests.support.until import until

if reason := lacking():
    pytest.skip(reason, allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Beside the base: an image of python:slim is 50 MB more.
MAX_BYTES = 480_000_000
# podman's word for what Docker calls systempaths=unconfined.
NAMESPACES = ("--security-opt", "seccomp=unconfined", "--security-opt", "unmask=ALL")
CONFINED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    made = Containers(tmp_path_factory.mktemp("containers"))
    try:
        made.make_base()
        made.build()
        yield made
    finally:
        made.close()


def size(containers: Containers, image: str) -> int:
    return int(json.loads(containers.podman("image", "inspect", image).stdout)[0]["Size"])


def test_it_is_small(containers: Containers) -> None:
    """What the image adds to its base is the program with its packages, and nothing of the build."""
    own = size(containers, IMAGE) - size(containers, BASE)

    assert own <= MAX_BYTES, f"{own / 1e6:.0f} MB"


async def test_it_answers_as_nobody_on_files_that_it_cannot_change(
    containers: Containers, tmp_path: Path
) -> None:
    """Its health check says so, a message is answered, and SIGTERM ends it in good order."""
    containers.start("gateway", *CONFINED, "--volume", "gateway:/data", "--env", "CHAT_GATEWAY_HTTP__PORT=0")

    def inside(*words: str) -> tuple[int, str]:
        done = containers.podman("exec", "gateway", *words, check=False)
        return done.returncode, done.stdout.strip()

    await until(lambda: containers.podman("healthcheck", "run", "gateway", check=False).returncode == 0, 120)
    user = inside("id", "-u")
    answer = inside("chat-gateway", "chat", "-m", "hello")
    written = [inside("touch", path)[0] for path in ("/x", "/opt/chat-gateway/x", "/data/x", "/tmp/x")]
    status = inside("grep", "-E", "^(CapBnd|NoNewPrivs):", "/proc/1/status")[1]
    containers.podman("stop", "--time", "45", "gateway")
    (state,) = json.loads(containers.podman("inspect", "gateway").stdout)

    assert user == (0, "10001")
    assert answer == (0, "echo: hello")
    assert written == [1, 1, 0, 0]
    assert status.split() == ["CapBnd:", "0000000000000000", "NoNewPrivs:", "1"]
    assert state["State"]["ExitCode"] == 0


@pytest.mark.parametrize(
    ("flags", "level", "words"),
    [
        ((), "fail", "shell refuses every command: bubblewrap does not work here: "),
        (NAMESPACES, "ok", "bubblewrap confines commands, without network"),
    ],
    ids=["without", "with"],
)
def test_commands_of_tools_are_confined_where_the_container_allows_namespaces(
    containers: Containers, flags: tuple[str, ...], level: str, words: str
) -> None:
    name = f"tools-{level}"
    containers.start(name, *CONFINED, *flags, "--env", "CHAT_GATEWAY_TOOLS__SHELL__ENABLED=true")

    said = containers.podman("exec", name, "chat-gateway", "doctor", "--json", check=False).stdout
    containers.podman("rm", "--force", name)
    found = [check for check in json.loads(said) if check["name"] == "tools"]

    assert [(check["level"], check["text"].startswith(words)) for check in found] == [(level, True)], found
