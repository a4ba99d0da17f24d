"""Tools that are off by default: what they lack is said, with the cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app.wiring_session import SessionServices
from gateway.app.wiring_tools import EXTRACTION_CURE, NO_EXTRACTION, OptionalTools, granted, lacking
from gateway.config.load import load
from gateway.config.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def settings(tmp_path: Path, **environ: str) -> Settings:
    named = {f"CHAT_GATEWAY_TOOLS__{name}": value for name, value in environ.items()}
    return load(None, tmp_path, named, tables={})


def test_an_enabled_tool_is_for_direct_chats_and_for_groups_where_it_is_named(tmp_path: Path) -> None:
    off = settings(tmp_path)
    on = settings(tmp_path, SHELL__ENABLED="true", WEB_FETCH__ENABLED="true", GROUPS="web_fetch")

    assert not {"shell", "web_fetch"} & {*granted(off, group=False), *granted(off, group=True)}
    assert granted(on, group=False) == (*off.tools.direct, "web_fetch", "shell")
    assert granted(on, group=True) == ("web_fetch",)
    assert [tool.spec.name for tool in OptionalTools(on).tools] == ["web_fetch", "shell"]
    assert OptionalTools(off).tools == []


def test_a_tool_that_is_named_and_not_enabled_is_told(tmp_path: Path) -> None:
    named = settings(tmp_path, GROUPS="shell", DIRECT="shell, read")

    assert lacking(named) == [
        ("tools.direct and tools.groups: shell is not enabled", "set tools.shell.enabled = true")
    ]
    assert lacking(settings(tmp_path)) == []


def test_without_the_library_web_fetch_is_not_offered_and_the_cure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it was not installed: None stands for a module that is not to be had."""
    monkeypatch.setitem(sys.modules, "trafilatura", None)  # type: ignore[arg-type]
    on = settings(tmp_path, WEB_FETCH__ENABLED="true")

    assert lacking(on) == [(NO_EXTRACTION, EXTRACTION_CURE)]
    assert OptionalTools(on).tools == []
    assert "make extras" in EXTRACTION_CURE


async def test_a_tool_that_was_switched_off_after_a_crash_may_have_acted(tmp_path: Path) -> None:
    """Its call is told as of unknown outcome, and never as one of a tool that is none."""
    services = SessionServices(settings(tmp_path), status=lambda *_: [])
    try:
        toolbox = services.turns.toolbox
        assert toolbox.get("shell") is None
        assert toolbox.may_repeat("shell") is False
        assert toolbox.may_repeat("never_was") is True
    finally:
        await services.aclose()


def test_what_is_off_imports_no_library() -> None:
    """Neither reading the configuration nor building the tools."""
    heavy = {
        *("lxml", "httpx", "ctypes"),
        *("session.tools.shell", "session.tools.sandbox", "session.mcp.server"),
    }
    code = f"import gateway.app.wiring_session, sys; print({heavy!r} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ran.stdout == "set()\n"
