"""The units: what systemd's own checks say of them, and that they start what there is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway import systemd
from gateway.__main__ import main
from gateway.config.finding import DEFAULT_WORKSPACE, default_workspace, usual_file
from gateway.config.schema import Schema
from gateway.config.settings import LimitsSettings, Settings
from gateway.errors import GatewayError
from tests.docs.page import read
from tests.support.command_line import parsed
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = guarantee(
    "operation", "A person's own systemd runs and watches the gateway with the unit that `onboard` writes."
)

SERVICES = ("chat-gateway.service", "chat-gateway@.service")
MAX_EXPOSURE = 2.0
PROGRAM = Path("/usr/bin/env")


def service(name: str) -> list[tuple[str, str]]:
    """The lines of ``[Service]``, in order."""
    text = systemd.text(name, Path(systemd.PACKAGED_PROGRAM)).split("[Service]", 1)[1].split("\n[", 1)[0]
    return [
        (key, value)
        for key, _, value in (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
        if key
    ]


def faultless(*words: str, root: Path) -> None:
    """See that systemd finds no fault in units."""
    done = analyze(*words[:-1], "verify", "--man=no", *words[-1].split(), root=root)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def analyze(*words: str, root: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.fail("install systemd (apt-get install systemd), or run: make test")
    # What is asked for a person looks there for their manager.
    env = {**os.environ, "XDG_RUNTIME_DIR": str(root)}
    return subprocess.run(
        ["systemd-analyze", *words], cwd=root, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder of units, as `systemd install` writes it, with a program that is there."""
    systemd.install(tmp_path, PROGRAM)
    return tmp_path / "systemd" / "system"


def exposure(name: str, folder: Path) -> float:
    """The exposure level of a unit, 0 (none) to 10."""
    said = analyze("security", "--offline=true", f"./{name}", root=folder)
    found = re.search(r"Overall exposure level .*: ([\d.]+)", said.stdout)
    assert found, said.stdout + said.stderr
    return float(found[1])


@pytest.mark.parametrize("name", [*SERVICES, systemd.USER_UNIT])
def test_little_is_exposed(name: str, installed: Path) -> None:
    (installed / systemd.USER_UNIT).write_text(systemd.text(systemd.USER_UNIT, PROGRAM))

    assert exposure(name, installed) <= MAX_EXPOSURE


@pytest.mark.parametrize("name", ["chat-gateway.service", systemd.USER_UNIT])
def test_with_bubblewrap_it_is_exposed_no_more_than_that_needs(name: str, tmp_path: Path) -> None:
    """The drop-in that gives bubblewrap its namespaces leaves capabilities and files as they were."""
    more = systemd.text("sandbox.conf", PROGRAM).split("[Service]", 1)[1]
    before, after = systemd.text(name, PROGRAM).split("\n[Install]")
    (tmp_path / name).write_text(f"{before}{more}\n[Install]{after}")

    assert exposure(name, tmp_path) <= 3.5


def test_systemd_finds_no_fault_in_them(installed: Path) -> None:
    for role in ("session", "channels"):
        (installed / f"chat-gateway@{role}.service").write_text(
            (installed / "chat-gateway@.service").read_text()
        )

    faultless(
        "./chat-gateway.service ./chat-gateway@session.service ./chat-gateway@channels.service",
        root=installed,
    )


def test_nor_in_those_of_the_nightly_backup(tmp_path: Path) -> None:
    """They stand on their page alone, with the secrets that the service itself has."""
    service, timer = (code.text for code in read(ROOT / "docs" / "backup.md").code if code.language == "ini")
    program = "/opt/chat-gateway/.venv/bin/chat-gateway"
    (tmp_path / "chat-gateway-backup.service").write_text(service.replace(program, str(PROGRAM)))
    (tmp_path / "chat-gateway-backup.timer").write_text(timer)

    faultless("./chat-gateway-backup.timer", root=tmp_path)
    for line in systemd.text("chat-gateway.service", PROGRAM).splitlines():
        assert not line.startswith("LoadCredential=") or line in service.splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_they_start_what_there_is(name: str) -> None:
    """Their command is one that the program takes, for each role that the template may have."""
    lines = dict(service(name))
    for role in ("channels", "session") if "@" in name else ("all",):
        program, *words = shlex.split(lines["ExecStart"].replace("%i", role))
        args = parsed(words)

        assert program == systemd.PACKAGED_PROGRAM
        assert args.role == role
        # The one that a verb of root uses as well.
        assert args.workspace is None
        assert f"/var/lib/{lines['StateDirectory']}" == default_workspace(args.config)
    assert lines["Type"] == "notify"
    assert set(lines["RestartPreventExitStatus"].split()) == {"73", "78"}
    assert int(lines["TimeoutStopSec"]) > LimitsSettings().drain_s + 10
    # What a running turn has started is not ended before the turn.
    assert lines["KillMode"] == "mixed"


def test_both_are_the_same_service() -> None:
    """The template differs in its command alone."""
    one, template = ([line for line in service(name) if line[0] != "ExecStart"] for name in SERVICES)

    assert one == template


def test_the_unit_of_a_person_is_the_same_service() -> None:
    """But for where its files lie it says nothing that the service does not, and is watched as that is."""
    own, whole = service(systemd.USER_UNIT), service(SERVICES[0])
    lines = dict(own)

    assert {line for line in own if line not in whole} == {
        ("ExecStart", lines["ExecStart"]),
        ("EnvironmentFile", "-%h/.config/chat-gateway/environment"),
        ("ProtectHome", "read-only"),
        ("ReadWritePaths", "%h/.chat-gateway"),
    }
    for name in ("Type", "WatchdogSec", "RestartPreventExitStatus", "TimeoutStopSec", "Restart", "KillMode"):
        assert lines[name] == dict(whole)[name]
    program, *words = shlex.split(lines["ExecStart"].replace("%h", "/home/ada"))
    args = parsed(words)
    assert program == systemd.PACKAGED_PROGRAM
    assert args.workspace == Path(DEFAULT_WORKSPACE.replace("~", "/home/ada"))
    assert args.config == usual_file({"HOME": "/home/ada"})


def test_systemd_finds_no_fault_in_the_unit_of_a_person(tmp_path: Path) -> None:
    """Nor with names of files that mean something to it."""
    config = tmp_path / "100% mine" / '$HOME; "x"' / "config.toml"
    systemd.install_user(tmp_path, systemd.user_text(PROGRAM, config, tmp_path / "a b"), tmp_path / "a b")

    faultless("--user", f"./{systemd.USER_NAME}", root=tmp_path)


def test_a_person_installs_the_unit_with_their_own_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused while there is none, since it would not start."""
    words = ["--config", str(tmp_path / "config.toml"), "systemd", "install", "--user", "--to", str(tmp_path)]
    assert main(words) == 1
    assert "chat-gateway onboard creates it" in capsys.readouterr().err
    (tmp_path / "config.toml").write_text(f'workspace = "{tmp_path}/w"\n')

    assert main(words) == 0

    unit = tmp_path / systemd.USER_NAME
    assert capsys.readouterr().out == f"{unit}\n"
    assert f"--config {tmp_path}/config.toml --workspace {tmp_path}/w run\n" in unit.read_text()


def test_every_secret_may_be_a_credential() -> None:
    """Each key that holds a secret is looked for in the store of credentials, none other."""
    named = dict(value.split(":") for key, value in service(SERVICES[0]) if key == "LoadCredential")

    assert named == {".".join(path): f"chat-gateway.{'.'.join(path)}" for path in Schema(Settings).secrets}


def test_the_user_and_the_folders_are_those_of_the_units() -> None:
    lines = dict(service(SERVICES[0]))
    users = (ROOT / "systemd" / "sysusers.conf").read_text()
    folders = (ROOT / "systemd" / "tmpfiles.conf").read_text()

    assert re.search(rf'^u {lines["User"]} - ".*" /var/lib/{lines["StateDirectory"]} ', users, re.MULTILINE)
    assert f"d /var/lib/{lines['StateDirectory']} 0700 {lines['User']} {lines['User']} -" in folders


def test_install_writes_them_with_the_program_that_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file lies where systemd looks for it, and everybody may read it; what is in the way is named."""
    assert main(["systemd", "install", "--to", str(tmp_path), "--program", "/opt/x/bin/chat-gateway"]) == 0

    written = capsys.readouterr().out.split()
    assert written == [str(tmp_path / place) for place in systemd.PLACES.values()]
    for place in written:
        assert Path(place).stat().st_mode & 0o777 == 0o644
        assert Path(place).parent.stat().st_mode & 0o777 == 0o755
    assert "ExecStart=/opt/x/bin/chat-gateway " in Path(written[0]).read_text()
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "systemd").write_text("a file")
    assert main(["systemd", "install", "--to", str(tmp_path / "shut"), "--program", str(PROGRAM)]) == 1
    assert "run it as root, or choose a folder with --to" in capsys.readouterr().err


def test_a_program_in_an_odd_place_is_one_word_for_systemd(tmp_path: Path) -> None:
    """It splits at spaces and expands %; all of its quoting is undone by what checks the unit."""
    program = tmp_path / "my apps" / "100%h" / "chat-gateway"
    program.parent.mkdir(parents=True)
    shutil.copy(PROGRAM, program)

    systemd.install(tmp_path, program)

    unit = tmp_path / "systemd" / "system" / "chat-gateway.service"
    words = f'"{str(program).replace("%", "%%")}" --config '
    assert f"ExecStart={words}" in unit.read_text()
    faultless("./chat-gateway.service", root=unit.parent)


def test_a_program_is_named_from_the_root_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = f"ExecStart={tmp_path}/bin/chat-gateway "

    assert main(["systemd", "show", "chat-gateway.service", "--program", "bin/chat-gateway"]) == 0
    assert start in capsys.readouterr().out
    assert main(["systemd", "install", "--to", "to", "--program", "bin/chat-gateway"]) == 0
    assert start in (tmp_path / "to" / systemd.PLACES["chat-gateway.service"]).read_text()


@pytest.mark.parametrize("name", ["chat-gateway", "python"])
def test_a_link_to_where_no_service_may_look_is_refused(tmp_path: Path, name: str) -> None:
    """Of a virtual environment the Python is a link as well, which may lead into somebody's home."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "chat-gateway").touch()
    (tmp_path / "bin" / name).unlink(missing_ok=True)
    (tmp_path / "bin" / name).symlink_to("/root/.local/it")

    with pytest.raises(GatewayError, match=r"/root/\.local/it.* where no service may look"):
        systemd.install(tmp_path / "to", tmp_path / "bin" / "chat-gateway")
    with pytest.raises(GatewayError, match="where no service may look"):
        systemd.install(tmp_path / "to", Path("/home/ada/.local/bin/chat-gateway"))

    assert not (tmp_path / "to").exists()


def test_show_prints_each_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    for name in systemd.NAMES:
        assert main(["systemd", "show", name, "--program", systemd.PACKAGED_PROGRAM]) == 0
        assert capsys.readouterr().out == (ROOT / "systemd" / name).read_text()
