"""``[mcp.NAME]``: what a table of a server may hold, what is said without its library, and its secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.load import Settings, load
from gateway.config.redact import Redactor
from gateway.config.shown import shown_settings
from gateway.errors import ConfigError
from tests.gateway.cli_place import Ran

SERVERS = """
[people]
ada = ["telegram:1"]
[mcp.files]
command = ["files", "--all"]
env = {TOKEN = "sesame-open-sesame"}
people = ["ada"]
[mcp.tracker]
url = "https://tracker.example.org/mcp"
headers_file = "headers"
"""


def read(folder: Path, text: str) -> Settings:
    (folder / "c.toml").write_text(text)
    return load(folder / "c.toml", folder / "w", {}, tables={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mcp.x]", "mcp.x: set command for a stdio server, or url"),
        (
            "[mcp.x]\ncommand = ['a']\nurl = 'http://a/'",
            "mcp.x: set command for a stdio server, or url",
        ),
        ("[mcp.x]\nurl = 'ftp://a/'", "mcp.x.url: expected"),
        ("[mcp.x]\ncommand = ['bin/a']", "mcp.x.command: use the program's absolute path, or a name"),
        ("[mcp.x]\ncommand = ['a']\nreadable = ['lib']", "mcp.x.readable: use absolute paths"),
        (
            "[mcp.x]\ncommand = ['a']\nheaders_file = 'h'",
            "mcp.x: headers_file is not for a server by command",
        ),
        ("[mcp.x]\nurl = 'http://a/'\nnetwork = true", "mcp.x: network is not for a server by url"),
        (
            "[mcp.x]\ncommand = ['a']\npeople = ['ben']",
            "mcp: x: people: [people] has no 'ben'",
        ),
        ("[mcp.'../x']\ncommand = ['a']", "mcp: '../x': expected a name of at most 32 letters"),
        ("[mcp.'a.b']\ncommand = ['a']", "mcp: 'a.b': expected a name of at most 32 letters"),
    ],
)
def test_a_table_that_makes_no_sense_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    (problem,) = caught.value.problems
    assert words in problem


def test_its_secrets_are_known_and_never_shown(tmp_path: Path) -> None:
    settings = read(tmp_path, SERVERS)
    shown = Ran(tmp_path / "w", "--config", tmp_path / "c.toml", "config", "show")

    assert settings.mcp["files"].env["TOKEN"].get_secret_value() == "sesame-open-sesame"
    assert "sesame-open" not in shown.out + repr(settings)
    assert Redactor.of(settings, {}).text("it said sesame-open-sesame") == "it said ***"


def without_library(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb where the library is not installed."""
    code = "import sys; sys.modules['mcp'] = None; from gateway.__main__ import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_its_library_every_look_says_so(tmp_path: Path) -> None:
    """The rest of the gateway is not the worse for it."""
    read(tmp_path, SERVERS)
    here = ("--config", tmp_path / "c.toml", "--workspace", tmp_path / "w")

    checked = without_library(*here, "config", "check")
    examined = without_library(*here, "doctor", "--json")
    listed = without_library(*here, "mcp", "list")

    said = "the package mcp is not installed, so the tools of these servers are not offered"
    assert (checked.returncode, listed.returncode) == (0, 0)
    assert f"warning: mcp: {said}; make extras" in checked.stderr
    assert f"{said}; make extras" in listed.stderr
    found = [row for row in json.loads(examined.stdout) if row["name"].startswith("mcp")]
    assert [(row["level"], row["text"], row["cure"]) for row in found] == [("fail", said, "make extras")]


def test_no_library_is_imported_before_a_server_is_started(tmp_path: Path) -> None:
    """Whoever has no server, or runs one verb, does not pay for it."""
    read(tmp_path, SERVERS)
    code = (
        "import sys; from gateway.__main__ import main; code = main(); "
        "print(sorted({'mcp', 'httpx2', 'mcp_types'} & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    words = ["--config", str(tmp_path / "c.toml"), "--workspace", str(tmp_path / "w"), "mcp", "list"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=True
    )

    assert "[]" in done.stderr
    assert "tracker" in done.stdout


def test_a_key_in_an_address_is_not_shown(tmp_path: Path) -> None:
    """Hosted servers have theirs behind the question mark, or before the name of the host."""
    table = (
        '[mcp.x]\nurl = "https://ada:sesame@a.example/mcp?apiKey=sesame-open"\n[mcp.y]\nurl = "https://b/mcp"\n'
        '[model]\napi_base = "https://c.example/v1?key=sesame-long-and-open"\n'
        '[agents.a.model]\napi_base = "https://d.example/v1?k=sesame&v=2"'
    )
    settings = read(tmp_path, table)
    shown = shown_settings(settings)
    redactor = Redactor.of(settings, {})

    assert shown["model"]["api_base"] == "https://c.example/v1?********"  # type: ignore[index]
    assert "sesame" not in redactor.text("POST https://c.example/v1?key=sesame-long-and-open failed")
    assert "sesame" not in redactor.text("no such key: sesame-long-and-open")

    assert "sesame" not in json.dumps(shown)
    assert [each["url"] for each in shown["mcp"].values()] == [  # type: ignore[attr-defined]
        "https://ada:***@a.example/mcp?********",
        "https://b/mcp",
    ]
