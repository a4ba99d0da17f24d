"""What is installed from the distribution runs without the repository, and knows its version."""

from __future__ import annotations

import asyncio
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.deploy.built import commit, copy_of_checkout, environment_with, hook, run
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

READY_S = 120


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without git: what somebody has who unpacked an archive."""
    return copy_of_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from the source archive, as package installers do."""
    folder = tmp_path_factory.mktemp("dist")
    archive = hook(checkout, "build_sdist", folder)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return hook(folder / archive.name.removesuffix(".tar.gz"), "build_wheel", folder)


def test_the_wheel_has_all_that_is_used_and_nothing_else(wheel: Path) -> None:
    """Every file of the four packages, the page and the units among them; no tests, no caches."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    packages = ("gateway", "channels", "session", "durable")
    kept = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert names == kept
    assert {"gateway/http/web/index.html", "gateway/systemd/chat-gateway@.service"} <= names


@guarantee("operation", "The installed wheel runs without the repository.")
async def test_it_runs_from_another_folder_and_serves_its_page(wheel: Path, tmp_path: Path) -> None:
    """Installed into a fresh environment the daemon answers, with its own files and not the repository's."""
    program = environment_with(wheel, tmp_path / "env") / "chat-gateway"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    gateway = run(program.parent / "python", "-c", "import gateway; print(gateway.__file__)", cwd=elsewhere)
    daemon = await asyncio.create_subprocess_exec(
        *(str(program), "--workspace", str(tmp_path / "workspace"), "run"),
        cwd=elsewhere,
        env={"CHAT_GATEWAY_HTTP__PORT": "0", "PATH": "/usr/bin:/bin", "HOME": str(elsewhere)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert daemon.stderr is not None
        async with asyncio.timeout(READY_S):
            while not (line := (await daemon.stderr.readline()).decode()).startswith("ready "):
                assert line, "it ended before it was ready"
        url = line.split()[1].rstrip("/")
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            page = await client.get("/")
            answer = await client.post("/v1/messages?wait=60", json={"chat_id": "ada", "text": "hello"})
        shown = run(program, "systemd", "show", "chat-gateway.service", cwd=elsewhere)
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        assert await daemon.wait() == 0

    assert gateway.startswith(str(tmp_path))
    assert page.status_code == 200
    assert "<script" in page.text
    assert answer.json()["reply"] == "echo: hello"
    assert f"ExecStart={program} " in shown


def test_the_version_is_that_of_the_tag(checkout: Path, tmp_path: Path) -> None:
    """A tagged commit is that version, one without tags a development version; an archive keeps its own."""
    without = shutil.copytree(checkout, tmp_path / "without", symlinks=True)
    commit(without)
    tagged = shutil.copytree(checkout, tmp_path / "tagged", symlinks=True)
    commit(tagged, tag="v1.2.3")
    archive = hook(tagged, "build_sdist", tmp_path / "dist")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "dist", filter="data")

    def version(source: Path) -> str:
        return hook(source, "build_wheel", source / "wheels").name.split("-")[1]

    assert version(tagged) == "1.2.3"
    assert version(tmp_path / "dist" / "chat_gateway-1.2.3") == "1.2.3"
    assert re.fullmatch(r"0\.\d+(\.\d+)?\.dev\d+(\+\w+(\.\w+)*)?", version(without))
    assert re.match(r"0\.\d+", version(checkout))
