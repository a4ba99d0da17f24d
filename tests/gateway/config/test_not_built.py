"""Settings that are accepted before anything acts on them: their defaults, their types, and the warnings."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load
from gateway.config.not_built import KEYS, not_built
from gateway.config.settings import Settings
from gateway.doctor.checks import examine
from gateway.errors import ConfigError
from tests.gateway.cli_place import Ran
from tests.gateway.config_reading import EVERY_DEFAULT

WRITTEN = """
[state]
local_dir = "/var/lib/x"
"""


def read(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "c.toml").write_text(text)
    return load(folder / "c.toml", folder / "w", environ, tables={})


def named(table: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Name each key that a document sets, as warnings do."""
    for name, value in table.items():
        path = f"{above}{name}"
        if isinstance(value, dict):
            yield from named(value, f"{path}.")
        else:
            yield path


def test_the_defaults_warn_of_nothing(tmp_path: Path) -> None:
    """Whether they are left out or written down."""
    assert not_built(read(tmp_path, "")) == []
    assert not_built(read(tmp_path, EVERY_DEFAULT)) == []


def test_each_key_that_is_set_warns(tmp_path: Path) -> None:
    """So does each row of the table: one that no configuration can have would never warn."""
    found = not_built(read(tmp_path, WRITTEN))

    assert sorted(found) == sorted(named(tomllib.loads(WRITTEN)))
    for key in KEYS:
        assert any(fnmatch(name, f"{key}*") for name in found), key


def test_the_environment_names_them_too(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        "",
        CHAT_GATEWAY_STATE__LOCAL_DIR="/x",
        CHAT_GATEWAY_MCP='{"files": {"command": ["files"]}}',
    )

    assert settings.mcp["files"].command == ("files",)
    assert not_built(settings) == ["state.local_dir"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[tools.policy]\nshell = "maybe"', 'tools.policy.shell: expected "allow" or "ask" or "deny"'),
        ("[limits]\nworkers = -1", "limits.workers: expected a whole number of at least 0"),
        (
            "[mcp.files]\ncommand = ['x']\ntimeout_s = 0",
            "mcp.files.timeout_s: expected a number above 0, got 0",
        ),
        ("[mcp.files]\nurl = 'http://a/'\ncomand = []", "mcp.files.comand: unknown key"),
        ('[tools.shell]\nsandbox = "docker"', "tools.shell.sandbox: expected"),
        ('[state]\nlocal = ""', "state.local: unknown key; nearest: state.local_dir"),
        ("[memory]\nversion_days = -1", "memory.version_days: expected a number of at least 0"),
    ],
)
def test_a_wrong_value_is_told_as_of_any_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    (problem,) = caught.value.problems
    assert words in problem


def test_check_and_doctor_say_what_changes_nothing(tmp_path: Path) -> None:
    settings = read(tmp_path, WRITTEN)
    plain = Ran(tmp_path / "w", "--config", tmp_path / "c.toml", "config", "check")
    as_json = Ran(tmp_path / "w", "--config", tmp_path / "c.toml", "config", "check", "--json")

    async def configuration() -> list[tuple[str, str]]:
        return [(one.level, one.text) async for one in examine(settings) if one.name == "configuration"]

    checks = asyncio.run(configuration())

    assert (plain.code, as_json.code) == (0, 0)
    assert "warning: state.local_dir: not built yet, it changes nothing\n" in plain.err
    document = json.loads(as_json.out)
    assert document["problems"] == []
    assert "state.local_dir: not built yet, it changes nothing" in document["warnings"]
    assert ("warn", "state.local_dir: not built yet, it changes nothing") in checks
    assert len(checks) == 1 + len(not_built(settings)) == 1 + len(document["warnings"])


def test_the_start_says_what_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[state]\nlocal_dir = 'elsewhere'\n[http]\nport = 0\n")
    words = ["--config", str(tmp_path / "c.toml"), "--workspace", str(tmp_path / "w"), "run"]
    process = subprocess.Popen([sys.executable, "-m", "gateway", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        seen: list[str] = []
        while not seen or not seen[-1].startswith("ready"):
            seen.append(line := process.stderr.readline())
            assert line, seen
    finally:
        process.terminate()
        process.wait(60)

    assert "state.local_dir: not built yet, it changes nothing\n" in seen


def test_what_is_shown_can_be_read_again_and_hides_secrets(tmp_path: Path) -> None:
    shown = Ran(tmp_path / "w", "--config", _file(tmp_path, WRITTEN), "config", "show")

    assert "sesame-open" not in shown.out
    again = load(_file(tmp_path, shown.out), None, {}, tables={})
    assert not_built(again) == not_built(read(tmp_path, WRITTEN))


def _file(folder: Path, text: str) -> Path:
    (folder / "c.toml").write_text(text)
    return folder / "c.toml"
