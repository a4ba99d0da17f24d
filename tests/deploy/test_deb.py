"""The Debian package under a real systemd: installed, started, watched, confined, and taken away again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import systemd
from tests.docs.page import read
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.support.systemd_box import BORROWED, Box, lacking

SYSTEM = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True, check=False).stdout
if reason := lacking():
    pytest.skip(reason, allow_module_level=True)
if not SYSTEM.startswith("Python {}.{}.".format(*sys.version_info)):
    pytest.skip("needs Debian's own Python of the version that the packages are for", allow_module_level=True)
pytestmark = [
    pytest.mark.slow,
    guarantee("operation", "The Debian package starts a confined service and leaves nothing after a purge."),
]

UNIT = "chat-gateway.service"
CONFIG = Path("/etc/chat-gateway/config.toml")
AS_SERVICE = ("runuser", "-u", "chat-gateway", "--", "chat-gateway")
# Waits at its end for what it has started.
DRAINS = """
sh -c 'sleep 3; echo came to its end' &
trap 'wait $!; exit 0' TERM
echo work goes on
while :; do wait $!; done
"""
# What dpkg, man-db and the journal note of every package.
BOOKS = ("/var/lib/dpkg", "/var/cache", "/var/log", "/var/lib/systemd", "/etc/.pwd.lock")
BOOKS += ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")


# The locked packages are three quarters of the time: they are borrowed, unless all of it is to be tried.
WHOLE = bool(os.environ.get("DEB_WHOLE"))
PACKAGES = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, built from this checkout and the packages that are installed beside it."""
    folder = tmp_path_factory.mktemp("share")
    packages = {"DEB_PACKAGES": str(PACKAGES)} | ({} if WHOLE else {"DEB_BORROW": str(BORROWED)})
    done = subprocess.run(
        [ROOT / "deploy" / "deb" / "build.sh", sys.executable, folder],
        env={**os.environ, **packages, "DEB_COMPRESS": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    Path(done.stdout.strip()).rename(folder / "chat-gateway.deb")
    shutil.copy(ROOT / "tests" / "support" / "stuck.py", folder)
    (folder / "stuck.py").chmod(0o644)
    shutil.copytree(ROOT / "tests" / "support", folder / "tests" / "support")
    folder.chmod(0o755)
    return folder


def machine_with(share: Path) -> Box:
    """A machine on which nothing is installed yet."""
    return Box(share, packages=None if WHOLE else PACKAGES)


def install(box: Box) -> None:
    box.run("dpkg", "--install", "--force-unsafe-io", "/run/share/chat-gateway.deb", check=True)


@pytest.fixture(scope="module")
def box(share: Path) -> Iterator[Box]:
    """A machine on which the package is installed and runs."""
    with machine_with(share) as machine:
        install(machine)
        yield machine


@pytest.fixture
def service(box: Box) -> Iterator[Box]:
    """The service, stopped and as it was installed, for a test that changes it and starts it."""
    box.run("systemctl", "stop", UNIT, check=True)
    yield box
    box.run("systemctl", "stop", UNIT)
    box.run("systemctl", "reset-failed", UNIT)
    box.run("rm", "-rf", f"/etc/systemd/system/{UNIT}.d")
    write(box, CONFIG, "")
    box.run("systemctl", "daemon-reload", check=True)


def write(box: Box, path: Path, text: str) -> None:
    box.run("sh", "-c", f'mkdir -p "{path.parent}" && printf %s "$TEXT" > "{path}"', check=True, TEXT=text)


def drop_in(box: Box, text: str) -> None:
    write(box, Path(f"/etc/systemd/system/{UNIT}.d/test.conf"), text)
    box.run("systemctl", "daemon-reload", check=True)


def test_it_is_started_by_its_installation_and_answers(box: Box) -> None:
    """The user, its folders, the enabled unit, the page and the verbs are there without a further step."""
    page = box.run("curl", "-fsS", "http://127.0.0.1:8006/", check=True).stdout
    answer = box.run(*AS_SERVICE, "chat", "-m", "hello", check=True).stdout

    assert box.shown(UNIT, "ActiveState") == "active"
    assert box.shown(UNIT, "StatusText") == "answers"
    assert box.shown(UNIT, "User") == "chat-gateway"
    assert box.run("systemctl", "is-enabled", UNIT).stdout == "enabled\n"
    assert "<script" in page
    assert answer == "echo: hello\n"
    # Root without a configuration of its own works on the service, and makes no second workspace.
    status = box.run("chat-gateway", "status", check=True).stdout
    assert f"configuration: {CONFIG}\nworkspace: /var/lib/chat-gateway\ngateway: ready" in status
    assert box.run("find", "/root", "-name", ".chat-gateway").stdout == ""
    modes = box.run("stat", "-c", "%a %U %G", str(CONFIG.parent), str(CONFIG), "/var/lib/chat-gateway").stdout
    assert modes.splitlines() == [
        "750 root chat-gateway",
        "640 root chat-gateway",
        "700 chat-gateway chat-gateway",
    ]
    assert box.run("man", "-w", "chat-gateway").returncode == 0 or shutil.which("man") is None


def test_every_page_with_its_pictures_is_in_the_package(share: Path) -> None:
    """Where its manual page says; the records of decisions are in a folder of their own there."""
    listed = subprocess.run(
        ["dpkg-deb", "--contents", share / "chat-gateway.deb"], capture_output=True, text=True, check=True
    ).stdout
    there = {line.partition("./usr/share/doc/chat-gateway/")[2] for line in listed.splitlines()}
    docs = ROOT / "docs"

    assert {str(path.relative_to(docs)) for path in docs.rglob("*") if path.is_file()} - there == set()


@guarantee(
    "operation",
    "systemd sees when the gateway is ready and restarts a blocked one, not one with a slow model.",
)
def test_a_loop_that_is_blocked_is_started_anew_and_one_whose_model_is_slow_is_not(service: Box) -> None:
    """The watchdog ends the first, whose log says where it stood; the second goes on through many limits."""
    home = "/usr/lib/chat-gateway/bin/python3"
    drop_in(
        service,
        "[Service]\nWatchdogSec=3\nEnvironment=CHAT_GATEWAY_MODEL__ECHO_DELAY_S=5\nExecStart=\n"
        f"ExecStart={home} /run/share/stuck.py --config {CONFIG} run\n",
    )
    service.run("systemctl", "restart", UNIT, check=True)

    answer = service.run(*AS_SERVICE, "chat", "-m", "slow", check=True).stdout
    restarts = service.shown(UNIT, "NRestarts")
    service.run("systemctl", "kill", "--kill-who=main", "-s", "USR1", UNIT, check=True)
    service.until(UNIT, "NRestarts", "1")
    service.until(UNIT, "ActiveState", "active")

    assert answer == "echo: slow\n"
    assert restarts == "0"
    journal = service.journal(UNIT)
    assert "_block" in journal
    assert "Watchdog timeout" in journal


def test_a_stop_leaves_alone_what_a_running_turn_has_started(service: Box) -> None:
    """The program alone is told: what it waits for comes to its end."""
    (service.share / "drains.sh").write_text(DRAINS)
    drop_in(service, "[Service]\nType=simple\nWatchdogSec=0\nExecStart=\nExecStart=sh /run/share/drains.sh\n")
    service.run("systemctl", "restart", UNIT, check=True)
    service.run(
        "sh", "-c", f"until journalctl -u {UNIT} | grep -q 'work goes on'; do sleep 0.1; done", check=True
    )
    service.run("systemctl", "stop", UNIT, check=True)

    assert "came to its end" in service.journal(UNIT)


def test_bash_zsh_and_fish_complete_its_verbs(box: Box) -> None:
    """From the files that the package brings, without a line in anybody's profile."""
    loaded = "source /usr/share/bash-completion/completions/chat-gateway"
    line = "COMP_CWORD=1 COMP_WORDS=(chat-gateway onb)"
    called = f"{loaded}; {line}; $(complete -p chat-gateway | grep -o '_chat_[a-z_]*') chat-gateway"
    bash = box.run("bash", "-c", f"{called}; echo ${{COMPREPLY[0]}}", check=True).stdout
    zsh = box.run("zsh", "-fc", "autoload -U compinit; compinit -D; echo $_comps[chat-gateway]").stdout
    fish = box.run("fish", "-c", "complete -C 'chat-gateway onb'", HOME="/tmp").stdout

    assert bash.split() == ["onboard"]
    assert zsh.split() == ["_chat-gateway"]
    assert fish.split()[0] == "onboard"


def test_a_configuration_that_cannot_be_used_is_not_tried_again(service: Box) -> None:
    """It ends with 78, and says in the journal what is wrong."""
    write(service, CONFIG, "[http]\nprot = 1\n")
    service.run("systemctl", "restart", UNIT)
    service.until(UNIT, "ActiveState", "failed")

    assert service.shown(UNIT, "ExecMainStatus") == "78"
    assert service.shown(UNIT, "NRestarts") == "0"
    assert "http.prot: unknown key; nearest: http.port" in service.journal(UNIT)


def test_a_secret_comes_from_the_store_of_credentials(service: Box) -> None:
    """A file that is root's alone becomes the token that HTTP asks for."""
    token = "a-token-of-the-test-0123456789"
    write(service, Path("/etc/credstore/chat-gateway.http.token"), token)
    try:
        service.run("systemctl", "restart", UNIT, check=True)
        address = "http://127.0.0.1:8006/v1/status"
        without = service.run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", address).stdout
        with_it = service.run("curl", "-fsS", "-H", f"Authorization: Bearer {token}", address, check=True)
    finally:
        service.run("rm", "/etc/credstore/chat-gateway.http.token", check=True)

    assert without == "401"
    assert json.loads(with_it.stdout)["ready"] is True


@pytest.mark.parametrize(
    ("more", "level", "words"),
    [
        ("", "fail", "shell refuses every command: bubblewrap does not work here: "),
        ("sandbox.conf", "ok", "bubblewrap confines commands, without network"),
    ],
)
def test_commands_of_tools_are_confined_under_the_unit_with_the_drop_in(
    service: Box, more: str, level: str, words: str
) -> None:
    """Without it they are refused: `doctor` tries it under the same."""
    write(service, CONFIG, "[tools.shell]\nenabled = true\n")
    body = systemd.text(UNIT, Path("/usr/bin/chat-gateway"))
    body = body.replace("Type=notify", "Type=oneshot").replace("WatchdogSec=60\n", "")
    body = body.replace("config.toml run", "config.toml doctor --json")
    body = body.replace("Restart=on-failure\n", "StandardOutput=truncate:/run/share/doctor.json\n")
    write(service, Path("/etc/systemd/system/looks.service"), body)
    if more:
        text = systemd.text(more, Path("/usr/bin/chat-gateway"))
        write(service, Path("/etc/systemd/system/looks.service.d/sandbox.conf"), text)
    service.run("systemctl", "daemon-reload", check=True)
    service.run("systemctl", "start", "looks.service")
    service.run("rm", "-rf", "/etc/systemd/system/looks.service.d")

    checks = json.loads((service.share / "doctor.json").read_text())
    found = [check for check in checks if check["name"] == "tools"]
    assert [(check["level"], check["text"].startswith(words)) for check in found] == [(level, True)], found


def test_removed_it_keeps_and_purged_it_leaves_nothing(share: Path) -> None:
    """`remove` keeps conversations and configuration, `purge` takes away user, files and folders.

    Installed again it runs again; only an upgrade leaves a service stopped that somebody stopped.
    """
    with machine_with(share) as machine:
        machine.run("touch", "/run/before", check=True)
        install(machine)
        machine.run(*AS_SERVICE, "chat", "-m", "hello", check=True)
        machine.run("dpkg", "--remove", "chat-gateway", check=True)
        gone = machine.run("systemctl", "is-active", UNIT).stdout.strip()
        kept = machine.run("ls", "/var/lib/chat-gateway/sessions", str(CONFIG), check=True).stdout
        install(machine)
        again = machine.shown(UNIT, "ActiveState")
        machine.run("systemctl", "stop", UNIT, check=True)
        install(machine)
        upgraded = machine.shown(UNIT, "ActiveState")
        machine.run("dpkg", "--remove", "chat-gateway", check=True)
        machine.run("dpkg", "--purge", "chat-gateway", check=True)

        assert gone == "inactive"
        assert (again, upgraded) == ("active", "inactive")
        assert "cli_direct.jsonl" in kept
        assert listing(machine) == []
        assert machine.run("getent", "passwd", "chat-gateway").returncode != 0


def test_the_commands_of_the_page_install_and_remove_it(share: Path) -> None:
    """Without a package: what docs/systemd.md says is typed, and then the service runs, and is gone."""
    installing = told("sudo chat-gateway systemd install")
    confining = told("show sandbox.conf | sudo")
    removing = told("userdel")
    with machine_with(share) as machine:
        program = (
            "cd /run && dpkg-deb -x /run/share/chat-gateway.deb x && mv x/usr/lib/chat-gateway /usr/lib/"
        )
        machine.run(
            "sh", "-c", f"{program} && ln -s ../lib/chat-gateway/bin/chat-gateway /usr/bin/", check=True
        )
        typed(machine, installing)
        active = machine.shown(UNIT, "ActiveState")
        mode = machine.run("stat", "-c", "%a %U %G", str(CONFIG)).stdout
        typed(machine, confining)
        drop_ins = machine.shown(UNIT, "DropInPaths")
        answer = machine.run(*AS_SERVICE, "chat", "-m", "hello", check=True).stdout
        typed(machine, removing)

        assert active == "active"
        assert mode == "640 root chat-gateway\n"
        assert drop_ins.endswith("sandbox.conf")
        assert answer == "echo: hello\n"
        assert machine.shown(UNIT, "LoadState") == "not-found"
        assert machine.run("getent", "passwd", "chat-gateway").returncode != 0


@guarantee(
    "operation", "A person's own systemd runs and watches the gateway with the unit that `onboard` writes."
)
@guarantee("operation", "`onboard` takes another port beside a system service.")
def test_a_person_runs_it_under_a_systemd_of_their_own(service: Box) -> None:
    """Beside the machine's service, by the unit of `onboard` and the page's commands; 78 ends it for good."""
    service.run("systemctl", "start", UNIT, check=True)
    service.run("useradd", "--create-home", "--uid", "4242", "ada", check=True)
    write(service, Path("/etc/systemd/system/ada.service"), PERSON)
    service.run("systemctl", "start", "ada.service", check=True)

    said = as_ada(
        service, "chat-gateway onboard --yes --model echo --platform none --unit ~/.config/systemd/user"
    )
    as_ada(service, told("chat-gateway systemd install --user"))
    state = shown_to_ada(service, "ActiveState", "StatusText", "Type", "WatchdogUSec", "NoNewPrivileges")
    answer = as_ada(service, "chat-gateway chat -m hello").stdout
    as_ada(service, "echo '[http]\nprot = 1' > ~/.config/chat-gateway/config.toml")
    as_ada(service, "! systemctl --user restart chat-gateway")
    failed = shown_to_ada(service, "ActiveState", "ExecMainStatus", "NRestarts")
    as_ada(service, told("systemctl --user disable --now"))
    gone = shown_to_ada(service, "LoadState")
    service.run("systemctl", "stop", "ada.service", check=True)

    assert "port 8006 is taken by another program; the web console gets 8007" in said.stderr
    assert "systemctl --user enable --now chat-gateway" in said.stderr
    assert state == ["active", "answers", "notify", "1min", "yes"]
    assert answer == "echo: hello\n"
    assert failed == ["failed", "78", "0"]
    assert gone == ["not-found"]


@guarantee(
    "operation", "`onboard` as root gives the system service its first model key, readable by nobody else."
)
def test_root_leads_the_service_to_its_first_model(service: Box) -> None:
    """It tries the key, writes it where the service can read it and nobody else, and restarts the service."""
    program = ("/usr/lib/chat-gateway/bin/python3", "-m", "tests.support.model_server", "--port", "8099")
    service.run("systemd-run", "--unit=model", "--working-directory=/run/share", *program, check=True)
    address = "http://127.0.0.1:8099/v1"
    service.run(
        "curl", "-sS", "--retry", "60", "--retry-connrefused", "--retry-delay", "1", address, check=True
    )
    write(service, Path("/run/key"), "the-key\n")
    onboard = ("--yes", "--model", "openai/stub", "--api-base", address, "--key-file", "/run/key")
    service.run("systemctl", "start", UNIT, check=True)
    before = service.shown(UNIT, "MainPID")
    said = service.run(*told("onboard").split()[1:], *onboard, "--platform", "none", check=True).stderr
    after = service.shown(UNIT, "MainPID"), service.shown(UNIT, "ActiveState")
    answer = service.run(*AS_SERVICE, "chat", "-m", "hello", check=True).stdout
    modes = service.run("sh", "-c", f"stat -c '%a %U %G' {CONFIG} {CONFIG.parent}/secrets/*").stdout
    service.run("rm", "-r", f"{CONFIG.parent}/secrets", check=True)
    service.run("systemctl", "stop", "model", check=True)

    assert f"Restarting the gateway: systemctl restart {UNIT}" in said
    assert "counts from its next start on" not in said
    assert before not in ("0", after[0])
    assert after[1] == "active"
    assert answer == "stub: hello\n"
    assert modes.splitlines() == ["640 root chat-gateway", "640 root chat-gateway"]


# What user@.service does, without a log-in; systemd mounts below this very folder of the user.
PERSON = """\
[Service]
Type=notify
User=ada
Environment=HOME=/home/ada XDG_RUNTIME_DIR=/run/user/4242
RuntimeDirectory=user/4242
Delegate=yes
ExecStart=/lib/systemd/systemd --user
"""


def as_ada(box: Box, commands: str) -> subprocess.CompletedProcess[str]:
    """Type commands as a person who is logged in."""
    home = ("env", "HOME=/home/ada", "XDG_RUNTIME_DIR=/run/user/4242")
    return box.run("runuser", "-u", "ada", "--", *home, "sh", "-ec", f"cd ~\n{commands}", check=True)


def shown_to_ada(box: Box, *names: str) -> list[str]:
    """Properties of the unit of a person, in this order."""
    words = " ".join(f"-p {name}" for name in names)
    lines = as_ada(box, f"systemctl --user show {words} {UNIT}").stdout.splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return [found[name] for name in names]


def told(words: str) -> str:
    """The one block of commands of docs/systemd.md that has these words."""
    blocks = [code.text for code in read(ROOT / "docs" / "systemd.md").code if code.language == "sh"]
    (block,) = (text for text in blocks if words in text)
    return block


def typed(box: Box, commands: str) -> None:
    """Type what a page says, as a person who may use sudo."""
    box.run("bash", "-ec", f'sudo() {{ "$@"; }}\n{commands}', check=True)


def listing(box: Box) -> list[str]:
    """All files that came or changed since, but for the package manager's own books."""
    found = box.run("find", "/run/changed", "!", "-type", "d", "-cnewer", "/run/before", check=True).stdout
    named = box.run("find", "/run/changed", "-type", "d", "-path", "*chat-gateway*", check=True).stdout
    paths = [line.removeprefix("/run/changed") for line in (found + named).splitlines()]
    # What was removed of this machine's own leaves a mark there, which is a device.
    return [
        path for path in paths if not path.startswith(BOOKS) and box.run("test", "-e", path).returncode == 0
    ]
