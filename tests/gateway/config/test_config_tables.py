"""``[mcp.NAME]``, ``[tools.policy]`` and ``[state]``: what their tables hold, refuse, and do not show."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.app.wiring_tools import build_gate
from gateway.config.redact import Redactor, shown_settings
from gateway.errors import ConfigError
from session.tools import ToolPlace
from tests.gateway.cli_place import Ran
from tests.gateway.config_reading import read_alone as read

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
            "mcp.x: headers_file cannot be set for a server with command",
        ),
        ("[mcp.x]\nurl = 'http://a/'\nnetwork = true", "mcp.x: network cannot be set for a server with url"),
        (
            "[mcp.x]\ncommand = ['a']\npeople = ['ben']",
            "mcp: x: people: [people] has no 'ben'",
        ),
        ("[mcp.'../x']\ncommand = ['a']", "mcp: '../x': expected a name of at most 32 letters"),
        ("[mcp.'a.b']\ncommand = ['a']", "mcp: 'a.b': expected a name of at most 32 letters"),
        ("[mcp.files]\nurl = 'http://a/'\ncomand = []", "mcp.files.comand: unknown key"),
        ('[tools.policy]\nshell = "no"', 'tools.policy.shell: expected "allow" or "ask" or "deny"'),
        ('[tools.policy.chats.ada]\nshell = "ask"', "tools.policy.chats: 'ada': expected a key"),
        (
            '[tools.shell]\nsandbox = "landlock"',
            "tools.shell.sandbox: unknown key; remove it: commands always run",
        ),
        ('[state]\nlocal = ""', "state.local: unknown key; nearest: state.local_dir"),
        ('[state]\nlocal_dir = "state"', "state.local_dir: 'state': expected the absolute path of a folder"),
        ('[state]\nlocal_dir = "~nobody-here/x"', "expected the absolute path of a folder"),
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


WRITTEN = """
[people]
ada = ["telegram:1"]
[tools.policy]
shell = "ask"
"mcp.files.*" = "deny"
"*" = "allow"
[tools.policy.people.ada]
shell = "allow"
[tools.policy.chats."telegram:-100123"]
"*" = "deny"
[tools.policy.channels.discord]
"mcp.files.read" = "ask"
"""


def test_the_tables_are_read(tmp_path: Path) -> None:
    gate = build_gate(read(tmp_path, WRITTEN), clock=lambda: datetime.now(UTC))

    def decide(tool: str, key: str, sender: str) -> str:
        return gate.decide(tool, ToolPlace(tmp_path, key), [sender])

    assert decide("shell", "telegram:1", "1") == "allow"
    assert decide("shell", "telegram:2", "2") == "ask"
    assert decide("shell", "telegram:-100123", "2") == "deny"
    assert decide("shell", "telegram:-100123", "1") == "allow"
    assert decide("mcp.files.read", "telegram:2", "2") == "deny"
    assert decide("mcp.files.read", "discord:2", "2") == "ask"
    assert decide("read", "discord:2", "2") == "allow"


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    read(tmp_path, WRITTEN)
    words = ["--config", tmp_path / "c.toml", "config", "show"]
    again = read(tmp_path, Ran(tmp_path / "w", *words).out)
    shown = json.loads(Ran(tmp_path / "w", *words, "--json").out)

    assert again.tools.policy == read(tmp_path, WRITTEN).tools.policy
    assert shown["tools"]["policy"]["people"] == {"ada": {"shell": "allow"}}
    assert shown["tools"]["policy"]["shell"] == "ask"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("w", "is the workspace itself"),
        ("w/state/x", "is inside the workspace"),
        (".", "contains the workspace"),
    ],
)
def test_local_files_lie_apart_from_the_workspace(tmp_path: Path, name: str, words: str) -> None:
    """The line of the key is named, as of any problem, and the command ends with 78."""
    text = f'\n[state]\nlocal_dir = "{tmp_path / name}"\n'
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/c.toml:3: state.local_dir: {tmp_path / name} {words}")
    assert Ran(tmp_path / "w", "--config", tmp_path / "c.toml", "config", "check").code == 78


def test_local_dir_may_be_named_by_the_home_folder_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert read(tmp_path, '[state]\nlocal_dir = "~/local/"').local_dir == tmp_path / "home" / "local"
    assert read(tmp_path, "", CHAT_GATEWAY_STATE__LOCAL_DIR="/x//y/../z").local_dir == Path("/x/z")
    assert read(tmp_path, "").local_dir is None
