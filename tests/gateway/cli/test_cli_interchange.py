"""``sessions import|export`` as a person uses them, and a nanobot workspace taken over whole."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.cli.parser import parse
from gateway.config import edit
from gateway.errors import GatewayError
from session.interchange.formats import FORMATS
from tests.gateway.embedded_place import files_at_most
from tests.support.harness import ROOT

SAMPLES = ROOT / "tests" / "data" / "nanobot-samples"
ULID = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"


class Ran:
    """One command, run in this process as the shell would: its code, stdout and stderr."""

    def __init__(self, workspace: Path, *words: str | Path) -> None:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.code = main(["--workspace", str(workspace), *map(str, words)])
        for stream in (out, err):
            stream.flush()
        self.bytes, self.err = out.buffer.getvalue(), err.buffer.getvalue().decode()

    @property
    def out(self) -> str:
        return self.bytes.decode()


def listed(workspace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Ran(workspace, "sessions", "list", "--json").out)
    return found


def shown(workspace: Path, target: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Ran(workspace, "sessions", "show", target, "--json").out)[
        "messages"
    ]
    return found


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    return path


def session_file(path: Path, key: str, *texts: str, **metadata: str) -> Path:
    head = {"_type": "metadata", "key": key, "created_at": "2026-02-01T09:00:00.000001", "metadata": metadata}
    return write(
        path, head, *({"role": "user", "content": text, "timestamp": "2026-02-01T09:00:00"} for text in texts)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_exported_comes_in_elsewhere(tmp_path: Path, name: str) -> None:
    ours, theirs, out = tmp_path / "ours", tmp_path / "theirs", tmp_path / "out"
    Ran(ours, "sessions", "import", "--from", "nanobot", SAMPLES / "v014" / "sessions" / "telegram_999.jsonl")
    out.mkdir()

    exported = Ran(ours, "sessions", "export", "--to", name, "telegram:999", "-o", out)
    imported = Ran(
        theirs, "sessions", "import", "--from", name, out, *(["--key", "cli:x"] if "nano" not in name else [])
    )
    key, ulid = imported.out.split()

    assert (exported.code, exported.out, imported.code) == (0, "", 0), exported.err + imported.err
    assert key == ("telegram:999" if "nano" in name else "cli:x")
    assert [(row["id"], row["message_count"], row["active"]) for row in listed(theirs)] == [(ulid, 6, True)]
    assert [line["content"] for line in shown(theirs, key)] == [
        line["content"] for line in shown(ours, "telegram:999")
    ]
    assert (ulid == listed(ours)[0]["id"]) == (name in ("nanobot", "nanobot-b64", "overlay", "rows"))


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_line_names_every_format(name: str) -> None:
    for words in (["import", "--from", name, "x"], ["export", "--to", name, "cli:x"]):
        assert parse(["sessions", *words]).format == name


def test_one_file_goes_to_stdout_and_a_folder_does_not(tmp_path: Path) -> None:
    Ran(
        tmp_path,
        "sessions",
        "import",
        "--from",
        "nanobot",
        SAMPLES / "v014" / "sessions" / "telegram_999.jsonl",
    )
    (row,) = listed(tmp_path)

    by_ulid = Ran(tmp_path, "sessions", "export", "--to", "nanobot", row["id"])
    folder = Ran(tmp_path, "sessions", "export", "--to", "overlay", "telegram:999")
    inside = Ran(
        tmp_path, "sessions", "export", "--to", "nanobot", "telegram:999", "-o", tmp_path / "sessions"
    )
    nobody = Ran(tmp_path, "sessions", "export", "--to", "nanobot", "cli:nobody")

    head, *lines = (json.loads(line) for line in by_ulid.bytes.splitlines())
    assert (head["key"], len(lines), by_ulid.code) == ("telegram:999", 6, 0)
    assert (folder.code, folder.out) == (2, "")
    assert "-o FOLDER" in folder.err
    assert (inside.code, nobody.code) == (1, 1)
    assert "try: chat-gateway sessions list" in nobody.err


def test_an_active_session_is_archived_first_and_never_touched(tmp_path: Path) -> None:
    file = session_file(tmp_path / "a.jsonl", "telegram:1", "old")
    Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", file)
    (before,) = listed(tmp_path / "w")
    session_file(file, "telegram:1", "new")

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", file)

    assert f"the active session {before['id']} is archived" in done.err
    rows = {row["active"]: row for row in listed(tmp_path / "w")}
    assert rows[False]["id"] == before["id"] != rows[True]["id"]
    assert [line["content"] for line in shown(tmp_path / "w", before["id"])] == ["old"]
    assert [line["content"] for line in shown(tmp_path / "w", "telegram:1")] == ["new"]


def test_a_ulid_is_kept_if_it_is_one_and_free(tmp_path: Path) -> None:
    file = session_file(tmp_path / "a.jsonl", "telegram:1", "hi", session_id=ULID)

    kept = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", file)
    taken = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", file, "--key", "cli:b")
    write(tmp_path / "x" / "s" / "session.jsonl")
    none = Ran(tmp_path / "w", "sessions", "import", "--from", "overlay", tmp_path / "x" / "s")

    assert kept.out.split() == ["telegram:1", ULID]
    assert taken.out.split()[0] == "cli:b"
    assert taken.out.split()[1] != ULID
    assert f"{ULID} belongs to a session here" in taken.err
    assert none.out.split()[0] == "cli:s"
    assert "s is no ULID" in none.err


def test_a_message_that_waits_for_its_answer_holds_an_import_off(tmp_path: Path) -> None:
    line = {"role": "user", "content": "hi", "message_id": "telegram:1:1", "timestamp": "2026-02-01T09:00:00"}
    path = write(
        tmp_path / "w" / "sessions" / "telegram_1.jsonl", {"_type": "metadata", "key": "telegram:1"}, line
    )
    file = session_file(tmp_path / "a.jsonl", "telegram:1", "new")
    before = path.read_bytes()

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", file)

    assert (done.code, done.out, path.read_bytes()) == (1, "", before)
    assert "is being answered" in done.err
    assert not (tmp_path / "w" / "sessions" / "archive").exists()


def test_a_compacted_folder_keeps_its_archives(tmp_path: Path) -> None:
    write(tmp_path / "main" / "20260225T143000.jsonl", {"ts": 1740000000, "role": "user", "content": "hi"})
    compact = {"type": "compact", "previousSession": "20260225T143000.jsonl"}
    write(
        tmp_path / "main" / "current.jsonl",
        {"ts": 1740000100, "role": "system", "content": "Summary: hi", "metadata": compact},
    )

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "archive", tmp_path / "main", "--key", "cli:m")
    alone = Ran(
        tmp_path / "w", "sessions", "import", "--from", "archive", tmp_path / "main" / "current.jsonl"
    )

    (line,) = shown(tmp_path / "w", "cli:m")
    (archived,) = (tmp_path / "w" / "sessions" / "archive" / "cli_m").iterdir()
    assert (line["kind"], line["metadata"]["previousSession"], done.code) == ("compact", archived.name, 0)
    assert alone.out.split()[0] == "cli:current"
    assert "not carried over: the archive 20260225T143000.jsonl" in alone.err


def test_mistakes_are_named(tmp_path: Path) -> None:
    png = tmp_path / "a.png"
    png.write_bytes(b"\x89PNG")

    missing = Ran(tmp_path / "w", "sessions", "import", "--from", "rows", tmp_path / "none")
    other = Ran(tmp_path / "w", "sessions", "import", "--from", "rows", png)
    key = Ran(tmp_path / "w", "sessions", "import", "--from", "rows", png, "--key", "nokey")
    empty = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", tmp_path)

    assert [ran.code for ran in (missing, other, key, empty)] == [1, 1, 2, 1]
    assert all("error: " in ran.err and "try: " in ran.err for ran in (missing, other, key, empty))
    assert not (tmp_path / "w" / "sessions").exists()


# -- a whole workspace ---------------------------------------------------------------------------------


def job(job_id: str, message: str = "what is new?") -> dict[str, Any]:
    return {
        "id": job_id,
        "name": job_id,
        "enabled": True,
        "schedule": {"kind": "every", "everyMs": 7200000},
        "payload": {"kind": "agent_turn", "message": message, "deliver": False},
        "state": {},
        "createdAtMs": 1,
        "updatedAtMs": 1,
        "deleteAfterRun": False,
    }


@pytest.fixture
def nanobot(tmp_path: Path) -> Path:
    """A nanobot's folder after years: old names, base64 names, the newest kind of folder, notes and jobs."""
    root = tmp_path / "dot-nanobot"
    work = root / "workspace"
    session_file(work / "sessions" / "telegram_1.jsonl", "telegram:1", "old name")
    name = base64.urlsafe_b64encode(b"telegram:2").decode().rstrip("=")
    session_file(work / "sessions" / f"{name}.jsonl", "telegram:2", "base64 name")
    session_file(
        root / "sessions" / ("0123456789abcdef" * 2) / f"{name}x.jsonl", "telegram:3", "newest folder"
    )
    write(work / "sessions" / "broken.jsonl", {"a": 1})
    (work / "memory").mkdir()
    (work / "memory" / "MEMORY.md").write_text("Ada likes tea.\n")
    (work / "memory" / "HISTORY.md").write_text("[2026-02-01 09:00] Tea.\n")
    (work / "AGENTS.md").write_text("Be kind.\n")
    (work / "cron").mkdir()
    jobs = {"version": 1, "jobs": [job("aaaa1111"), job("bbbb2222")]}
    (work / "cron" / "jobs.json").write_text(json.dumps(jobs))
    return root


def test_a_workspace_is_taken_over_whole_and_stays_as_it_was(tmp_path: Path, nanobot: Path) -> None:
    before = tree(nanobot)

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot)

    assert done.code == 0, done.err
    assert tree(nanobot) == before
    assert sorted(line.split()[0] for line in done.out.splitlines()) == [
        "telegram:1",
        "telegram:2",
        "telegram:3",
    ]
    assert [line["content"] for line in shown(tmp_path / "w", "telegram:3")] == ["newest folder"]
    for name in ("MEMORY.md", "HISTORY.md"):
        note = tmp_path / "w" / "memory" / name
        assert note.read_bytes() == (nanobot / "workspace" / "memory" / name).read_bytes()
        assert note.stat().st_mode & 0o777 == 0o600
    rows = json.loads(Ran(tmp_path / "w", "cron", "list", "--json").out)
    assert sorted(row["id"] for row in rows) == ["aaaa1111", "bbbb2222"]
    assert 'memory.scope = "workspace"' in done.err
    assert "broken.jsonl is left out" in done.err
    assert "AGENTS.md" in done.err


def test_taken_over_again_nothing_doubles(tmp_path: Path, nanobot: Path) -> None:
    Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot)
    before = {name: data for name, (data, _) in tree(tmp_path / "w").items() if not name.startswith("state/")}

    config = tmp_path / "c.toml"
    config.write_text('[memory]\nscope = "workspace"\n')
    again = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", nanobot, "--config", config)

    assert (again.code, again.out) == (0, "")
    after = {name: data for name, (data, _) in tree(tmp_path / "w").items() if not name.startswith("state/")}
    assert after == before
    assert "memory.scope" not in again.err


def test_what_is_ours_is_never_written_over(tmp_path: Path, nanobot: Path) -> None:
    """Notes and jobs that say something else stay, the rest is taken, and each one has its cure."""
    ours = tmp_path / "w"
    (ours / "memory").mkdir(parents=True)
    (ours / "memory" / "MEMORY.md").write_text("Ours.\n")
    (ours / "cron").mkdir()
    (ours / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": [job("aaaa1111", "ours")]}))

    done = Ran(ours, "sessions", "import", "--from", "nanobot", nanobot)

    assert done.code == 1
    assert (ours / "memory" / "MEMORY.md").read_text() == "Ours.\n"
    assert (ours / "memory" / "HISTORY.md").exists()
    jobs = {
        row["id"]: row["payload"]["message"]
        for row in json.loads((ours / "cron" / "jobs.json").read_text())["jobs"]
    }
    assert jobs == {"aaaa1111": "ours", "bbbb2222": "what is new?"}
    assert "error: memory/MEMORY.md is another one here" in done.err
    assert "try: chat-gateway cron remove aaaa1111" in done.err
    assert len(listed(ours)) == 3


def test_of_two_files_for_one_key_the_newer_is_active(tmp_path: Path) -> None:
    Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", SAMPLES / "v014")
    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot-b64", SAMPLES / "v035")

    rows = [row for row in listed(tmp_path / "w") if row["key"] == "telegram:999"]
    assert done.code == 0
    assert sorted((row["active"], row["message_count"]) for row in rows) == [(False, 6), (True, 8)]


def test_the_workspace_itself_is_refused(tmp_path: Path) -> None:
    Ran(tmp_path, "sessions", "import", "--from", "nanobot", SAMPLES / "v014")

    done = Ran(tmp_path, "sessions", "import", "--from", "nanobot", tmp_path)

    assert done.code == 1
    assert "is the workspace itself" in done.err


# -- --write-config -----------------------------------------------------------------------------------------

MINE = b"""# my own
timezone = "Europe/Berlin"   # home

[memory]      # notes
window = 60
# the end"""


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
    assert (again.code, "workspace already" in again.err) == (0, True)


def test_another_value_in_the_configuration_stays_and_is_shown(tmp_path: Path, nanobot: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('timezone = "UTC"\nmemory.scope = "chat"\n')

    done = take(tmp_path, nanobot, config)

    assert done.code == 1
    assert f'error: {config}:2: memory.scope = "chat" stands there' in done.err
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


def test_a_table_that_takes_nothing_in_is_left_alone(tmp_path: Path, nanobot: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("memory = { window = 60 }\n")

    done = take(tmp_path, nanobot, config)

    assert done.code == 1
    assert 'try: write scope = "workspace" there by hand' in done.err
    assert config.read_text() == "memory = { window = 60 }\n"


def test_a_full_disk_leaves_the_configuration(tmp_path: Path) -> None:
    """It says that it was not written, and nothing else is left behind."""
    config = tmp_path / "c.toml"
    config.write_bytes(MINE + b"\n" + b"# x\n" * 500)
    before = config.read_bytes()

    with files_at_most(1000), pytest.raises(GatewayError, match="cannot be written"):
        edit.put(config, ("memory", "scope"), '"workspace"')

    assert config.read_bytes() == before
    assert list(tmp_path.iterdir()) == [config]


def test_only_a_whole_workspace_has_a_scope_to_write(tmp_path: Path) -> None:
    one = session_file(tmp_path / "telegram_1.jsonl", "telegram:1", "x")

    done = Ran(tmp_path / "w", "sessions", "import", "--from", "nanobot", one, "--write-config")

    assert done.code == 2
