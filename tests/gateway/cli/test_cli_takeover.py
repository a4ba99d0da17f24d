"""A nanobot workspace taken over whole: conversations, notes, jobs, persona, skills, configuration."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from gateway.cli.interchange import NanobotWorkspace, take_texts
from gateway.config.edit import amend
from gateway.errors import GatewayError
from session.context.context_parts import PERSONA_FILES
from session.library.library import Library
from tests.gateway.cli_place import (
    SAMPLES,
    Ran,
    import_into,
    job,
    listed,
    nanobot_folder,
    session_file,
    shown,
    tree,
)
from tests.gateway.embedded_place import files_at_most

SKILL = "---\nname: invoices\ndescription: Writes an invoice.\n---\nRead `template.txt`.\n"


@pytest.fixture
def nanobot(tmp_path: Path) -> Path:
    return nanobot_folder(tmp_path / "dot-nanobot")


@pytest.fixture
def work(nanobot: Path) -> Path:
    """Its workspace, with all that it tells its model."""
    root = nanobot / "workspace"
    (root / "USER.md").write_text("Ada, Berlin.\n")
    (root / "SOUL.md").write_text("A cat.\n")
    put(root / "skills" / "invoices" / "SKILL.md", SKILL)
    put(root / "skills" / "invoices" / "assets" / "deep" / "template.txt", "Dear …\n").chmod(0o755)
    put(root / "skills" / "README.md", "about skills\n")
    put(root / "skills" / ".git" / "SKILL.md", "no skill\n")
    put(root / "skills" / "invoices" / ".cache" / "x", "hidden\n")
    put(root / "skills" / "invoices" / ".env", "hidden\n")
    return root


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def take(ours: Path, work: Path) -> Ran:
    return import_into(ours, work.parent)


def told(ours: Path) -> dict[str, str]:
    """What lies where the context reads: paths and texts."""
    places = [*(ours / name for name in PERSONA_FILES), ours / "memory" / "USER.md"]
    found = [path for path in (*places, *(ours / "skills").rglob("*")) if path.is_file()]
    return {str(path.relative_to(ours)): path.read_text() for path in found}


ALL = {
    "AGENTS.md": "Be kind.\n",
    "memory/USER.md": "Ada, Berlin.\n",
    "skills/invoices/SKILL.md": SKILL,
    "skills/invoices/assets/deep/template.txt": "Dear …\n",
}


def test_a_workspace_is_taken_over_whole_and_stays_as_it_was(tmp_path: Path, work: Path) -> None:
    before, ours = tree(work.parent), tmp_path / "w"

    done = take(ours, work)

    assert done.code == 0, done.err
    assert tree(work.parent) == before
    assert sorted(line.split()[0] for line in done.out.splitlines()) == [f"telegram:{n}" for n in (1, 2, 3)]
    assert [line["content"] for line in shown(ours, "telegram:3")] == ["newest folder"]
    for name in ("MEMORY.md", "HISTORY.md"):
        assert (ours / "memory" / name).read_bytes() == (work / "memory" / name).read_bytes()
    rows = json.loads(Ran(ours, "cron", "list", "--json").out)
    assert sorted(row["id"] for row in rows) == ["aaaa1111", "bbbb2222"]
    assert told(ours) == ALL
    assert [skill.name for skill in Library(ours).skills()] == ["invoices"]
    for path in ours.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    for words in ("AGENTS.md", "memory/USER.md", "skills: invoices", 'memory.scope = "workspace"'):
        assert words in done.err
    assert "broken.jsonl is skipped" in done.err
    (left,) = [line for line in done.err.splitlines() if line.startswith("not imported")]
    assert "SOUL.md" in left
    assert "AGENTS.md," not in left
    assert "USER.md" not in left


def test_taken_over_again_nothing_doubles(tmp_path: Path, work: Path) -> None:
    take(tmp_path / "w", work)
    before = {name: kept for name, kept in tree(tmp_path / "w").items() if not name.startswith("state/")}

    config = tmp_path / "c.toml"
    config.write_text('[memory]\nscope = "workspace"\n')
    again = import_into(tmp_path / "w", work.parent, "--config", config)

    assert (again.code, again.out) == (0, "")
    after = {name: kept for name, kept in tree(tmp_path / "w").items() if not name.startswith("state/")}
    assert {name: data for name, (data, _) in after.items()} == {
        name: data for name, (data, _) in before.items()
    }
    assert {name: after[name] for name in ALL} == {name: before[name] for name in ALL}
    assert "memory.scope" not in again.err


def test_what_is_ours_is_never_written_over(tmp_path: Path, work: Path) -> None:
    """Notes, jobs and texts that say something else stay, the rest is taken, and each one has its cure."""
    ours = tmp_path / "w"
    own = [*(name for name in ALL if "template" not in name), "memory/MEMORY.md"]
    for name in own:
        put(ours / name, f"ours: {name}\n")
    put(ours / "cron" / "jobs.json", json.dumps({"version": 1, "jobs": [job("aaaa1111", "ours")]}))

    done = take(ours, work)

    assert done.code == 1
    assert [(ours / name).read_text() for name in own] == [f"ours: {name}\n" for name in own]
    assert told(ours).keys() == {name for name in ALL if "template" not in name}
    assert (ours / "memory" / "HISTORY.md").exists()
    rows = json.loads((ours / "cron" / "jobs.json").read_text())["jobs"]
    jobs = {row["id"]: row["payload"]["message"] for row in rows}
    assert jobs == {"aaaa1111": "ours", "bbbb2222": "what is new?"}
    for name in ("AGENTS.md", "memory/USER.md", "memory/MEMORY.md", "skills/invoices"):
        assert f"error: {name} already exists here with different text" in done.err
    assert "try: chat-gateway cron remove aaaa1111" in done.err
    assert done.err.count("try: ") == 5
    assert len(listed(ours)) == 3


def test_of_two_files_for_one_key_the_newer_is_active(tmp_path: Path) -> None:
    import_into(tmp_path / "w", SAMPLES / "v014")
    done = import_into(tmp_path / "w", SAMPLES / "v035", name="nanobot-b64")

    rows = [row for row in listed(tmp_path / "w") if row["key"] == "telegram:999"]
    assert done.code == 0
    assert sorted((row["active"], row["message_count"]) for row in rows) == [(False, 6), (True, 6)]


def test_the_workspace_itself_is_refused(tmp_path: Path) -> None:
    import_into(tmp_path, SAMPLES / "v014")

    done = import_into(tmp_path, tmp_path)

    assert done.code == 1
    assert "is this gateway's own workspace" in done.err


def test_what_an_interrupted_import_left_is_completed(tmp_path: Path, work: Path) -> None:
    take(tmp_path / "w", work)
    (tmp_path / "w" / "skills" / "invoices" / "SKILL.md").unlink()
    put(tmp_path / "w" / "skills" / "invoices" / ".SKILL.md.import", "---\nna")

    assert take(tmp_path / "w", work).code == 0

    assert told(tmp_path / "w") == ALL


def test_a_persona_under_another_name_is_not_put_in_the_shade(tmp_path: Path, work: Path) -> None:
    put(tmp_path / "w" / "instructions.md", "Be brief.\n")

    done = take(tmp_path / "w", work)

    assert done.code == 1
    assert not (tmp_path / "w" / "AGENTS.md").exists()
    assert "instructions.md is the persona here, and is kept" in done.err


@pytest.mark.parametrize("what", ["file", "dangling link", "folder"])
def test_whatever_stands_in_the_way_stays(tmp_path: Path, work: Path, what: str) -> None:
    ours = tmp_path / "w"
    way = ours / "skills" / "invoices"
    way.parent.mkdir(parents=True)
    if what == "file":
        way.write_text("mine\n")
    elif what == "dangling link":
        way.symlink_to(tmp_path / "nowhere")
    else:
        (way / "SKILL.md").mkdir(parents=True)

    done = take(ours, work)

    assert done.code == 1
    assert "error: skills/invoices already exists here with different text and was kept" in done.err
    assert not (tmp_path / "nowhere").exists()
    assert (ours / "AGENTS.md").read_text() == "Be kind.\n"


def test_no_link_that_leaves_the_workspace_is_followed(tmp_path: Path, work: Path) -> None:
    outside = put(tmp_path / "outside" / "SKILL.md", "secret\n")
    put(work.parent / "config.json", "secret\n")
    (work / "AGENTS.md").unlink()
    (work / "AGENTS.md").symlink_to(outside)
    (work / "USER.md").unlink()
    (work / "USER.md").symlink_to("../config.json")
    (work / "skills" / "evil").symlink_to(outside.parent)
    (work / "skills" / "invoices" / "more").symlink_to(outside.parent)
    (work / "skills" / "invoices" / "loop").symlink_to("loop")
    (work / "skills" / "invoices" / "up").symlink_to("..")
    (work / "skills" / "invoices" / "secret.txt").symlink_to(outside)
    os.mkfifo(work / "skills" / "invoices" / "pipe")

    done = take(tmp_path / "w", work)

    assert done.code == 1
    assert told(tmp_path / "w") == {name: text for name, text in ALL.items() if name.startswith("skills")}
    for name in ("AGENTS.md", "USER.md", "evil", "more", "loop", "up", "secret.txt", "pipe"):
        assert any(
            line.startswith("error: ") and (f"/{name} " in line or f"/{name}/" in line)
            for line in done.err.splitlines()
        ), name


def test_a_link_within_the_workspace_gives_its_text(tmp_path: Path, work: Path) -> None:
    (work / "AGENTS.md").unlink()
    (work / "AGENTS.md").symlink_to("SOUL.md")
    (work.parent / "elsewhere").mkdir()
    work.rename(work.parent / "elsewhere" / "work")
    work.symlink_to(work.parent / "elsewhere" / "work")

    done = take(tmp_path / "w", work)

    assert done.code == 0, done.err
    assert told(tmp_path / "w") == {**ALL, "AGENTS.md": "A cat.\n"}
    assert not (tmp_path / "w" / "AGENTS.md").is_symlink()


def test_a_skill_that_no_model_will_see_is_named(tmp_path: Path, work: Path) -> None:
    put(work / "skills" / "plain" / "SKILL.md", "Just do it.\n")
    put(work / "skills" / "empty" / "notes.txt", "nothing\n")

    done = take(tmp_path / "w", work)

    assert done.code == 0, done.err
    assert "skills/plain/SKILL.md is not used: it must start with a header between two lines ---" in done.err
    assert not (tmp_path / "w" / "skills" / "empty").exists()
    assert "skills/empty has no SKILL.md" in done.err


def test_a_full_disk_leaves_whole_files_alone(tmp_path: Path, work: Path) -> None:
    take(tmp_path / "w", work)
    for name in ALL:
        (tmp_path / "w" / name).unlink()
    put(work / "AGENTS.md", "x" * 40_000)

    with files_at_most(20_000):
        done = take(tmp_path / "w", work)

    assert done.code == 1
    assert "AGENTS.md cannot be written" in done.err
    assert told(tmp_path / "w") == {}
    assert list((tmp_path / "w").glob(".*import")) == []
    assert take(tmp_path / "w", work).code == 0
    assert told(tmp_path / "w") == {**ALL, "AGENTS.md": "x" * 40_000}


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become somebody else")
def test_a_folder_of_a_skill_that_cannot_be_listed_is_named() -> None:
    """The skill came without what it reads, and nobody was told."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o777)
        root, ours = Path(top, "theirs"), Path(top, "ours")
        put(root / "skills" / "invoices" / "SKILL.md", SKILL)
        put(root / "skills" / "invoices" / "assets" / "template.txt", "Dear …\n")
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)
        (root / "skills" / "invoices" / "assets").chmod(0o700)
        child = os.fork()
        if child == 0:
            status = 9
            try:
                os.setuid(12345)
                ((problem, _),) = take_texts(NanobotWorkspace(roots=(root,)), ours)
                status = int(not problem.startswith(f"{root}/skills/invoices/assets is skipped"))
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (ours / "skills" / "invoices" / "SKILL.md").exists()


MINE = b"""# my own
timezone = "Europe/Berlin"   # home

[memory]      # notes
window = 60
# the end"""


def take_and_write(tmp_path: Path, nanobot: Path, config: Path) -> Ran:
    words = ("sessions", "import", "--from", "nanobot", nanobot, "--write-config", "--config", config)
    return Ran(tmp_path / "w", *words)


def test_an_import_writes_the_scope_into_the_configuration_where_asked(tmp_path: Path, nanobot: Path) -> None:
    """One line is added; comments, order, permissions and a link stay, and the notes are in use."""
    real, config = tmp_path / "dots" / "real.toml", tmp_path / "c.toml"
    real.parent.mkdir()
    real.write_bytes(MINE)
    real.chmod(0o640)
    config.symlink_to(real)

    done = take_and_write(tmp_path, nanobot, config)

    assert done.code == 0, done.err
    assert real.read_bytes() == MINE.replace(b"# notes\n", b'# notes\nscope = "workspace"\n')
    assert config.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in real.parent.iterdir()] == ["real.toml"]
    assert f'wrote memory.scope = "workspace" to {config}; restart the gateway' in done.err
    assert "tea" in Ran(tmp_path / "w", "memory", "show", "cli:direct", "--config", config).out
    again = take_and_write(tmp_path, nanobot, config)
    assert (again.code, 'already "workspace"' in again.err) == (0, True)


def test_another_value_in_the_configuration_stays_and_is_shown(tmp_path: Path, nanobot: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('timezone = "UTC"\nmemory.scope = "chat"\n')

    done = take_and_write(tmp_path, nanobot, config)

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

    done = take_and_write(tmp_path, nanobot, config)

    assert done.code == 1
    assert "CHAT_GATEWAY_MEMORY__SCOPE is set" in done.err
    assert config.read_bytes() == MINE


def test_without_a_configuration_one_is_made(
    tmp_path: Path, nanobot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place where a person's own is looked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    done = import_into(tmp_path / "w", nanobot, "--write-config")

    made = tmp_path / ".config" / "chat-gateway" / "config.toml"
    assert done.code == 0, done.err
    assert made.read_text() == '[memory]\nscope = "workspace"\n'
    assert made.stat().st_mode & 0o777 == 0o600


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

    done = import_into(tmp_path / "w", one, "--write-config")

    assert done.code == 2
