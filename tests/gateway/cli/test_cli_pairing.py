"""``pairing list|approve|revoke`` as an operator runs it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from channels.pairing import Pairing, approved
from tests.gateway.cli_place import Ran


def run(workspace: Path, *words: str) -> tuple[int, str, str]:
    """Run one command; return its exit code, stdout and stderr behind the places that it names."""
    ran = Ran(workspace, "pairing", *words)
    places, names, *words_left = ran.err.splitlines(keepends=True)
    assert (places, names) == (
        "configuration: none; defaults and environment variables\n",
        f"workspace: {workspace}\n",
    )
    return ran.code, ran.out, "".join(words_left)


def asked(workspace: Path, id: str = "100", name: str = "Ada", channel: str = "telegram") -> str:
    code = Pairing(workspace / "state").ask(channel, id, kind="person", name=name, message_id="t:1")
    assert code is not None
    return code


def test_list_shows_codes_and_whom_they_were_told(tmp_path: Path) -> None:
    assert run(tmp_path, "list") == (0, "", "no requests, and nobody was approved with a code\n")
    assert run(tmp_path, "list", "--json") == (0, "[]\n", "")
    code = asked(tmp_path, name="Ada\x1b[31m\n")

    exit_code, out, err = run(tmp_path, "list")
    as_json = json.loads(run(tmp_path, "list", "--json")[1])

    assert (exit_code, err) == (0, "")
    head, row = out.splitlines()
    assert head.split() == ["CODE", "WHO", "NAME", "CHANNEL", "STATE", "AT"]
    assert row.split()[:2] == [code, "telegram:100"]
    assert "\x1b" not in out
    assert [list(each) for each in as_json] == [["code", "who", "name", "channel", "state", "at"]]
    assert as_json[0]["state"] == "pending"


def test_approve_lets_in_and_revoke_takes_it_back(tmp_path: Path) -> None:
    code = asked(tmp_path, "-100200")

    let_in = run(tmp_path, "approve", code.lower())
    assert let_in == (0, "", "telegram:-100200 (Ada) is approved; the next message will be answered\n")
    assert approved(tmp_path / "state", "telegram").people == {"-100200"}

    out = run(tmp_path, "revoke", "-100200")
    assert out == (0, "", "telegram:-100200 (Ada) no longer has access\n")
    assert approved(tmp_path / "state", "telegram").people == frozenset()


def test_what_is_not_there_is_an_error_with_advice(tmp_path: Path) -> None:
    assert run(tmp_path, "approve", "ABCDEFGH") == (
        1,
        "",
        "error: no request has this code; codes are valid for an hour\ntry: chat-gateway pairing list\n",
    )
    assert run(tmp_path, "revoke", "telegram:5") == (
        1,
        "",
        "error: telegram:5 has neither asked for access nor been approved\ntry: chat-gateway pairing list\n",
    )


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with closing(sqlite3.connect(tmp_path / "state" / "channels.db")) as file:
        file.execute("PRAGMA user_version = 2")

    exit_code, out, err = run(tmp_path, "list")

    assert (exit_code, out) == (78, "")
    assert err.startswith(f"error: {tmp_path}/state/channels.db was written by a newer version")
