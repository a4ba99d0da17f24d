"""The pages about installing and running it fit the units, the scripts and the program."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gateway import systemd
from gateway.config.schema import Schema
from gateway.config.settings import Settings
from tests.docs.page import read

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = ("install.md", "systemd.md", "docker.md", "kubernetes.md", "rabbitmq.md", "http.md")


def unit() -> dict[str, str]:
    text = (ROOT / "systemd" / "chat-gateway.service").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))


def test_the_page_names_what_the_unit_uses() -> None:
    """Its program, user and folders."""
    text = (DOCS / "systemd.md").read_text()

    assert systemd.PACKAGED_PROGRAM in text
    for path in (f"/var/lib/{unit()['StateDirectory']}", "/etc/chat-gateway/config.toml", "/etc/credstore"):
        assert path in text
    assert f" -u {unit()['User']} " in text
    assert f"userdel {unit()['User']}" in text
    for name in systemd.NAMES:
        assert f"../systemd/{name}" in text


def test_the_page_has_every_credential() -> None:
    """Each secret, with the name of its file."""
    text = (DOCS / "systemd.md").read_text()

    for path in Schema(Settings).secrets:
        key = ".".join(path)
        assert f"| `chat-gateway.{key}` | `{key}` |" in text


def test_the_times_are_those_of_the_unit() -> None:
    text = (DOCS / "systemd.md").read_text()

    assert unit()["WatchdogSec"] == "60"
    assert "Every 20 seconds" in text
    assert "hears nothing for 60 seconds" in text


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_are_shell(name: str) -> None:
    """Each block of commands is one that a shell reads, and each file of ours in it is there."""
    blocks = [code.text for code in read(DOCS / name).code if code.language == "sh"]

    assert blocks
    for text in blocks:
        script = text.replace("<where this comes from>", "URL")
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        for path in re.findall(r"(?<![\w/.])(?:deploy|docs|systemd)/[\w./-]+\w", script):
            assert (ROOT / path).exists() or path == "deploy/.env", path
