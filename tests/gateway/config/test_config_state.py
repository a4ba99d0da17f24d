"""Values that a key cannot have, and where ``state.local_dir`` may lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.errors import ConfigError
from tests.gateway.cli_place import Ran


def read(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "c.toml").write_text(text)
    return load(folder / "c.toml", folder / "w", environ, tables={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[tools.policy]\nshell = "maybe"', 'tools.policy.shell: expected "allow" or "ask" or "deny"'),
        ("[limits]\nworkers = -1", "limits.workers: expected a whole number of at least 0"),
        (
            "[mcp.files]\ncommand = ['x']\ntimeout_s = 0",
            "mcp.files.timeout_s: expected a number above 0 and at most",
        ),
        ("[mcp.files]\nurl = 'http://a/'\ncomand = []", "mcp.files.comand: unknown key"),
        (
            '[tools.shell]\nsandbox = "landlock"',
            "tools.shell.sandbox: unknown key; remove it: commands always run",
        ),
        ('[state]\nlocal = ""', "state.local: unknown key; nearest: state.local_dir"),
        ('[state]\nlocal_dir = "state"', "state.local_dir: 'state': expected the absolute path of a folder"),
        ('[state]\nlocal_dir = "~nobody-here/x"', "expected the absolute path of a folder"),
        ("[memory]\nversion_days = -1", "memory.version_days: expected a number from 0"),
    ],
)
def test_a_wrong_value_is_told_as_of_any_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    (problem,) = caught.value.problems
    assert words in problem


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


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[state]\nlocal_dir = "/var/lib/x"\n')
    shown = Ran(tmp_path / "w", "--config", tmp_path / "c.toml", "config", "show")

    assert read(tmp_path, shown.out).local_dir == Path("/var/lib/x")
