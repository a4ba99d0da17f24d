"""What the documents and the layout promise of the code, checked against it."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from gateway.cli.root import COMMANDS
from tests import guarantees

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "channels", "session", "durable")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
# Each SDK is known to one package alone.
SDKS = {
    "aiormq": "gateway/queue/rabbitmq",
    "pamqp": "gateway/queue/rabbitmq",
    "litellm": "session/models",
    "openai": "session/models",
    "mcp": "session/mcp",
    "mcp_types": "session/mcp",
    "httpx2": "session/mcp",
    "anyio": "session/mcp",
    "telegram": "channels/telegram",
    "discord": "channels/discord",
}
DIRECT = re.compile(
    r"\b(?:time\.(?:time|time_ns|monotonic|perf_counter|sleep)|datetime\.now|random\.\w+|uuid\d"
    r"|secrets\.(?:token_\w+|choice|randbelow)|ULID\(\)|ULID\.from_datetime)\b"
)
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def imports_of(path: Path) -> set[str]:
    """The top-level names of every package that a file imports, wherever it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("sdk", SDKS)
def test_each_sdk_is_known_to_one_package_only(sdk: str) -> None:
    users = {str(path.parent.relative_to(ROOT)) for path in SOURCES if sdk in imports_of(path)}

    assert users == {SDKS[sdk]}


def test_a_sqlite_file_is_opened_in_two_places_alone() -> None:
    """What must survive is committed in batches by one, what is derived and shared is in the other's care."""
    users = {str(path.relative_to(ROOT)) for path in SOURCES if "sqlite3.connect(" in path.read_text()}

    assert users == {"durable/database.py", "session/store/derived.py"}


def test_time_chance_and_ids_come_from_one_module() -> None:
    """A simulation replaces ``durable.clock``, and nothing else."""
    users = {str(path.relative_to(ROOT)): DIRECT.findall(path.read_text()) for path in SOURCES}

    assert {path: found for path, found in users.items() if found and path != "durable/clock.py"} == {}


def test_the_page_of_guarantees_is_what_the_markers_give() -> None:
    assert guarantees.PAGE.read_text() == guarantees.page(), "run python -m tests.guarantees"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_commands_and_targets_exist(document: Path) -> None:
    """Every ``chat-gateway VERB`` is a verb, every ``make TARGET`` a target of the Makefile."""
    text = document.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    for verb in re.findall(r"chat-gateway ([a-z]+)\b", text):
        assert verb in COMMANDS
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in targets, target


def test_no_address_of_a_registry_in_the_locks() -> None:
    for lock in (ROOT / "deploy" / "locks").glob("*.txt"):
        assert not re.search(r"https?://|--index|--find-links", lock.read_text()), lock.name


def test_the_shell_scripts_parse() -> None:
    for script in (ROOT / ".ci" / "run", ROOT / "deploy" / "system-packages.sh"):
        subprocess.run(["bash", "-n", script], check=True)
