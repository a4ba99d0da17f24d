"""What is said where the workspace cannot be used: by every verb, and by ``doctor``, which checks on."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.config import finding
from gateway.config.load import load
from gateway.doctor.checks import examine
from gateway.doctor.finding import Check
from gateway.errors import ConfigError, GatewayError


@pytest.fixture(params=["", "beneath", "far/beneath"])
def blocked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A workspace that is a plain file, or would lie beneath one."""
    (tmp_path / "plain").write_text("not a folder")
    return tmp_path / "plain" / request.param


def checks(workspace: Path) -> dict[str, Check]:
    async def examined() -> dict[str, Check]:
        return {check.name: check async for check in examine(load(workspace=workspace, environ={}))}

    return asyncio.run(examined())


@pytest.mark.parametrize(
    "words",
    [
        ["chat", "-m", "hi"],
        ["status"],
        ["sessions", "list"],
        ["sessions", "verify"],
        ["memory", "show", "cli:direct"],
        ["parked", "list"],
        ["pairing", "list"],
        ["cron", "list"],
        ["run"],
    ],
)
def test_a_workspace_that_is_no_folder_is_named(
    words: list[str], blocked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever verb stumbles over it: what is in the way, how to choose another, and exit 78."""
    code = main(["--workspace", str(blocked), *words])

    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error:", "try:"))]
    in_the_way = blocked if blocked.name == "plain" else next(p for p in blocked.parents if p.name == "plain")
    assert code == 78
    assert said == [
        f"error: workspace {blocked} cannot be used: {in_the_way} is not a folder",
        f"try: {finding.FOLDER_CURE}",
    ]


def test_doctor_fails_a_workspace_that_is_no_folder_and_checks_the_rest(blocked: Path) -> None:
    """The folder fails with a cure; what needs none is checked, what does is left out."""
    found = checks(blocked)

    assert (found["workspace"].level, found["workspace"].cure) == ("fail", finding.FOLDER_CURE)
    assert "is not a folder" in found["workspace"].text
    assert found["model"].level == "warn"
    assert {"permissions", "transcripts"}.isdisjoint(found)


def test_doctor_goes_on_over_state_that_cannot_be_read(tmp_path: Path) -> None:
    """What lies in the way within the workspace fails the checks that meet it, and no others."""
    (tmp_path / "state").write_text("not a folder")

    found = checks(tmp_path)

    assert (found["workspace"].level, found["locks"].level, found["broker"].level) == ("ok", "fail", "fail")
    assert "daemon.json" in found["locks"].text
    assert found["cron"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_what_the_system_refused_in_the_workspace_is_a_sentence(tmp_path: Path, number: int) -> None:
    """The path and the system's own words, and doctor as the next step; nothing of other places."""
    refused = OSError(number, "No", str(tmp_path / "sessions"))
    elsewhere = OSError(number, "No", "/elsewhere")

    said = finding.explain(tmp_path, refused)

    assert isinstance(said, GatewayError)
    assert (str(said), said.exit_code, said.hint) == (f"{tmp_path}/sessions: No", 1, "chat-gateway doctor")
    assert finding.explain(tmp_path, elsewhere) is None
    assert finding.explain(tmp_path, FileNotFoundError(errno.ENOENT, "No", str(tmp_path / "x"))) is None
    assert finding.explain(tmp_path, ValueError("x")) is None


def test_a_link_that_leads_nowhere_is_in_the_way(tmp_path: Path) -> None:
    """Nothing can be made there, as little as beneath a file; a folder that does not exist yet is fine."""
    (tmp_path / "link").symlink_to(tmp_path / "gone")

    assert finding.in_the_way(tmp_path / "link" / "x") == tmp_path / "link"
    assert finding.in_the_way(tmp_path / "new" / "x") is None
    assert isinstance(finding.explain(tmp_path / "link", FileExistsError(17, "x")), ConfigError)
