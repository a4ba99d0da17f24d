"""What the documents and the layout promise of the code, checked against it."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from gateway.cli.parser import build

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "channels", "session", "durable")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
RABBITMQ = "gateway/queue/rabbitmq"
MCP = {f"session/mcp/{name}.py" for name in ("connection", "streams", "watch")}
SDKS = {
    # Chaos has a client of another kind, and removes what it made on a broker.
    "aio_pika": {f"{RABBITMQ}/{name}.py" for name in ("connection", "leased", "wire")}
    | {f"gateway/chaos/{name}.py" for name in ("foreign", "queues")},
    "aiormq": {f"{RABBITMQ}/{name}.py" for name in ("connection", "frames", "leased", "wire")},
    "pamqp": {f"{RABBITMQ}/{name}.py" for name in ("connection", "frames", "leased", "wire", "lenient")},
    "litellm": {"session/models/llm.py"},
    "mcp": MCP,
    "mcp_types": MCP,
    "httpx2": MCP,
    "anyio": MCP,
    "telegram": {"channels/telegram/wire.py"},
    "discord": {f"channels/discord/{name}.py" for name in ("gateway", "rest")},
}
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


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
def test_each_sdk_is_known_to_its_own_files_only(sdk: str) -> None:
    users = {str(path.relative_to(ROOT)) for path in SOURCES if sdk in imports_of(path)}

    assert users <= SDKS[sdk]


def test_a_sqlite_file_is_opened_in_two_places_alone() -> None:
    """What must survive is committed in batches by one, what is derived and shared is in the other's care."""
    users = {str(path.relative_to(ROOT)) for path in SOURCES if "sqlite3.connect(" in path.read_text()}

    assert users == {"durable/database.py", "session/disk/derived.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_keep_their_size(path: Path) -> None:
    text = path.read_text()
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > 60
    ]

    assert text.count("\n") <= 400
    assert long == []


def test_every_promise_names_a_test_that_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)

    assert len(named) > 10
    for file, function in named:
        assert (ROOT / file).exists(), file
        assert not function or f"def {function}(" in (ROOT / file).read_text(), function


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_commands_and_targets_exist(document: Path) -> None:
    """Every ``chat-gateway VERB`` is a verb, every ``make TARGET`` a target of the Makefile."""
    text = document.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    helps = build().format_help()

    for verb in re.findall(r"chat-gateway ([a-z]+)\b", text):
        assert re.search(rf"^ +{verb}\b", helps, re.MULTILINE), verb
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in targets, target


def test_no_address_of_a_registry_in_the_locks() -> None:
    for lock in (ROOT / "deploy" / "locks").glob("*.txt"):
        assert not re.search(r"https?://|--index|--find-links", lock.read_text()), lock.name


def mapped() -> dict[str, set[str]]:
    """What the map of ARCHITECTURE.md names: the modules of each folder, by the folder's path."""
    block = (ROOT / "ARCHITECTURE.md").read_text().split("## The map", 1)[1].split("```")[1]
    found: dict[str, set[str]] = {}
    package = room = ""
    for line in block.strip("\n").splitlines():
        if line[:1].strip():
            package = line.split()[0]
        if line[10:11].strip():
            room = f"{package}/{line[10:].split()[0]}".removesuffix("/.").rstrip("/")
            found[room] = set()
        else:
            found[room].update(line.split())
    return found


def test_the_map_names_every_module_and_folder_and_nothing_else() -> None:
    """A folder's line has its path from column 10 on; the lines below it name its modules."""
    here: dict[str, set[str]] = {}
    for path in SOURCES:
        names = here.setdefault(str(path.parent.relative_to(ROOT)), set())
        if path.stem not in ("__init__", "__main__"):
            names.add(path.stem)

    assert mapped() == here


def test_the_shell_scripts_parse() -> None:
    for script in (ROOT / ".ci" / "run", ROOT / "deploy" / "system-packages.sh"):
        subprocess.run(["bash", "-n", script], check=True)
