"""A server of either era over HTTP: with the headers it wants, at no other address, up again by itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from session.mcp.server import Server
from session.mcp.spec import ServerSpec
from tests.session.mcp.mcp_place import TOKEN, at, called, fault, kept_up, noted, served
from tests.support.guarantee import guarantee
from tests.support.ports import KeptPort
from tests.support.until import until

pytestmark = guarantee(
    "failures", "An MCP server that crashes, hangs or misbehaves fails only its own calls and is restarted."
)


async def up(server: Server) -> None:
    await until(lambda: server.part()["up"])


@pytest.mark.parametrize(("era", "protocol"), [("new", "2026-07-28"), ("old", "2025-11-25")])
async def test_either_era_is_spoken(tmp_path: Path, era: str, protocol: str) -> None:
    log = tmp_path / "log"
    with KeptPort() as port, served(log, port, era):
        async with kept_up(at(tmp_path, port, timeout_s=0.5), tmp_path) as server:
            await up(server)

            assert (await server.look())[2] == protocol
            assert (await called(server, "add", a=1, b=2)).text == "3"
            assert "did not answer within 0.5 s" in await fault(server, "slow", seconds=60)
            await until(lambda: noted(log)[-1] == "cancelled")
            assert (await called(server, "add", a=3, b=4)).text == "7"


async def test_a_server_that_was_away_is_found_again(tmp_path: Path) -> None:
    """Nothing is asked twice: the call that met the outage fails."""
    log = tmp_path / "log"
    with KeptPort() as port:
        async with kept_up(at(tmp_path, port), tmp_path) as server:
            assert server.part()["error"] == "it cannot be reached"
            with served(log, port):
                await up(server)
                assert (await called(server, "add", a=1, b=2)).text == "3"
            assert "is not known" in await fault(server, "add", a=5, b=6)
            await until(lambda: not server.part()["up"])

            with served(log, port):
                await up(server)
                assert (await called(server, "add", a=7, b=8)).text == "15"
    assert noted(log) == ["add 1 2", "add 7 8"]


@pytest.mark.parametrize(
    ("path", "token", "said"),
    [
        ("mcp", "wrong-wrong-wrong", "(HTTP 401)"),
        ("told?key=open-sesame", TOKEN, "unknown key *** for key=***, ask for another (HTTP 401)"),
        ("away", TOKEN, "not followed"),
        ("bomb", TOKEN, "MB"),
        ("packed", TOKEN, "its connection broke (DecodingError)"),
        ("nowhere", TOKEN, "(HTTP 404)"),
    ],
)
async def test_a_server_that_cannot_be_used_is_told_without_its_secrets(
    tmp_path: Path, path: str, token: str, said: str
) -> None:
    """No redirect is followed to another host, and no answer is read without end."""
    with KeptPort() as port, served(tmp_path / "log", port):
        async with kept_up(at(tmp_path, port, path=path, token=token), tmp_path) as server:
            await until(lambda: said in server.part()["error"])

            assert token not in server.part()["error"]
            assert server.tools == ()


@pytest.mark.parametrize("line", ["no colon", "Bad Name: x", "X-Key: caf\u00e9", "X-Key: a\tb"])
async def test_a_line_that_is_no_header_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    spec = at(tmp_path, 9)
    (tmp_path / "headers").write_text(f"X-First: yes\n{line}\n")

    async with kept_up(spec, tmp_path) as server:
        assert server.part()["error"] == f"headers_file {tmp_path / 'headers'}, line 2: not a header"


async def test_a_file_of_headers_that_is_not_there_is_named(tmp_path: Path) -> None:
    spec = ServerSpec("good", url="http://127.0.0.1:9/mcp", headers_file=tmp_path / "none")

    async with kept_up(spec, tmp_path) as server:
        assert server.part()["error"].startswith(f"headers_file {tmp_path / 'none'} cannot be read")


async def test_a_file_of_headers_without_an_end_is_read_no_further_than_it_may_go(tmp_path: Path) -> None:
    spec = at(tmp_path, 9)
    os.truncate(tmp_path / "headers", 2**42)

    async with kept_up(spec, tmp_path) as server:
        assert server.part()["error"] == f"headers_file {tmp_path / 'headers'} has over 65536 bytes"


async def test_many_calls_at_once_are_told_apart(tmp_path: Path) -> None:
    with KeptPort() as port, served(tmp_path / "log", port):
        async with kept_up(at(tmp_path, port), tmp_path) as server:
            await up(server)
            answers = await asyncio.gather(*(called(server, "add", a=number, b=1) for number in range(30)))

    assert [answer.text for answer in answers] == [str(number + 1) for number in range(30)]
