"""``docs/install.md`` and the unit beside it fit each other and the program."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from pathlib import Path

from gateway.cli.parser import build
from tests.docs.page import read

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "install.md"
UNIT = ROOT / "systemd" / "chat-gateway.service"


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    # Options of systemd are told apart by their capitals.
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(UNIT)
    return parser["Service"]


def test_the_unit_starts_what_there_is() -> None:
    """Its command is one that the program takes, with the folders that the page names."""
    program, *words = shlex.split(unit()["ExecStart"])
    args = build().parse_args(words)

    assert program == "/opt/chat-gateway/.venv/bin/chat-gateway"
    for place in (str(args.config), str(args.workspace), program):
        assert place in PAGE.read_text()
    assert str(args.workspace) == f"/var/lib/{unit()['StateDirectory']}"


def test_the_page_makes_the_user_of_the_unit() -> None:
    """The user that runs the service is the one that is made, and that runs the verbs."""
    user, text = unit()["User"], PAGE.read_text()

    assert re.search(rf"useradd .* {user}$", text, re.MULTILINE)
    assert f"sudo -u {user} " in text
    assert f"userdel {user}" in text


def test_the_service_has_time_to_drain() -> None:
    """Systemd waits longer than the gateway gives its running turns."""
    from gateway.config.settings import LimitsSettings

    assert int(unit()["TimeoutStopSec"]) > LimitsSettings().drain_s + 10


def test_the_commands_are_shell() -> None:
    """Each block of commands is one that a shell reads."""
    blocks = [code.text for page in ("install.md", "http.md") for code in read(ROOT / "docs" / page).code]
    shell = [text for text in blocks if "sudo " in text or "curl " in text or "install" in text]

    assert len(shell) > 10
    for text in shell:
        script = text.replace("<where this comes from>", "URL")
        if not script.startswith(("[", "error")):
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)
