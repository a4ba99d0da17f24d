"""``sessions import --write-config`` puts one line into a person's configuration and spoils nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.amend import amend
from gateway.errors import GatewayError
from tests.gateway.cli_place import Ran, listed, nanobot_folder, session_file
from tests.gateway.embedded_place import files_at_most

MINE = b"""# my own
timezone = "Europe/Berlin"   # home

[memory]      # notes
window = 60
# the end"""


@pytest.fixture
def nanobot(tmp_path: Path) -> Path:
    return nanobot_folder(tmp_path / "dot-nanobot")


def take(tmp_path: Path, nanobot: Path, config: Path) -> Ran:
    words = ("sessions", "import", "--from", "nanobot", nanobot, "--write-config", "--config", config)
    return Ran(tmp_path / "w", *words)


def test_an_import_writes_the_scope_into_the_configuration_where_asked(tmp_path: Path, nanobot: Path) -> None:
    """One line is added; comments, order, permissions and a link stay, and the notes are in use."""
    real, config = tmp_path / "dots" / "real.toml", tmp_path / "c.toml"
    real.parent.mkdir()
    real.write_bytes(MINE)
    real.chmod(0o640)
    config.symlink_to(real)

    done = take(tmp_path, nanobot, config)

    assert done.code == 0, done.err
    assert real.read_bytes() == MINE.replace(b"# notes\n", b'# notes\nscope = "workspace"\n')
    assert config.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in real.parent.iterdir()] == ["real.toml"]
    assert "is written" in done.err
    assert "tea" in Ran(tmp_path / "w", "memory", "show", "cli:direct", "--config", config).out
    again = take(tmp_path, nanobot, config)
    assert (again.code, "already workspace" in again.err) == (0, True)


def test_another_value_in_the_configuration_stays_and_is_shown(tmp_path: Path, nanobot: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('timezone = "UTC"\nmemory.scope = "chat"\n')

    done = take(tmp_path, nanobot, config)

    assert done.code == 1
    assert f'error: {config}:2: memory.scope = "chat" is set there' in done.err
    assert config.read_text() == 'timezone = "UTC"\nmemory.scope = "chat"\n'
    assert len(listed(tmp_path / "w")) == 3


def test_an_environment_that_goes_first_is_named(
    tmp_path: Path, nanobot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_bytes(MINE)
    monkeypatch.setenv("CHAT_GATEWAY_MEMORY__SCOPE", "chat")

    done = take(tmp_path, nanobot, config)

    assert done.code == 1
    assert "CHAT_GATEWAY_MEMORY__SCOPE is set" in done.err
    assert config.read_bytes() == MINE


def test_without_a_configuration_one_is_made(
    tmp_path: Path, nanobot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place where a person's own is looked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot, "--write-config")

    made = tmp_path / ".config" / "chat-gateway" / "config.toml"
    assert done.code == 0, done.err
    assert made.read_text() == '[memory]\nscope = "workspace"\n'
    assert made.stat().st_mode & 0o777 == 0o600


def test_a_table_in_one_line_takes_it_in(tmp_path: Path, nanobot: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("memory = { window = 60 }  # notes\n")

    done = take(tmp_path, nanobot, config)

    assert done.code == 0, done.err
    assert config.read_text() == 'memory = { window = 60, scope = "workspace"}  # notes\n'


def test_a_full_disk_leaves_the_configuration(tmp_path: Path) -> None:
    """It says that it was not written, and nothing else is left behind."""
    config = tmp_path / "c.toml"
    config.write_bytes(MINE + b"\n" + b"# x\n" * 500)
    before = config.read_bytes()

    with files_at_most(1000), pytest.raises(GatewayError, match="cannot be written"):
        amend(config, {("memory", "scope"): "workspace"})

    assert config.read_bytes() == before
    assert list(tmp_path.iterdir()) == [config]


def test_only_a_whole_workspace_has_a_scope_to_write(tmp_path: Path) -> None:
    one = session_file(tmp_path / "telegram_1.jsonl", "telegram:1", "x")

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", one, "--write-config")

    assert done.code == 2
