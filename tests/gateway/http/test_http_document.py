"""Schemathesis over the OpenAPI document: whatever is sent, no 5xx, and no answer that is not described."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.http_place import Place, open_place
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

# `make chaos-all` draws new examples of what these draw inside.
pytestmark = pytest.mark.hypothesis
TOKEN = "correct-horse-battery-staple"
EXAMPLES = 8
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# A stream without an end is looked at elsewhere; what takes long is asked less often.
LEFT_OUT = {"/v1/events"}
SLOW = {"/v1/doctor": 1, "/v1/login": 3, "/v1/config": 2, "/healthz": 1, "/readyz": 1}


@guarantee("interfaces", "Every response of the HTTP API matches its OpenAPI document, whatever the request.")
async def test_no_answer_that_is_not_described(tmp_path: Path) -> None:
    """With the right token each route answers as its document says, valid requests and broken ones."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        document, there = await _filled(place)

        tried = await asyncio.to_thread(Trying(document, place.server.url, TOKEN, there).all)

    assert tried == len(document["paths"]) - len(LEFT_OUT)


def shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def _sessions(place: Place) -> list[dict[str, Any]]:
    answer = await place.http.get("/v1/sessions", headers=shown(TOKEN))
    found: list[dict[str, Any]] = answer.json()["sessions"]
    return found


async def _filled(place: Place) -> tuple[dict[str, Any], dict[str, str]]:
    """Let there be something to find; return the document, and names that stand for something."""
    for chat in ("ada", "bob"):
        body = {"chat_id": chat, "text": "hello"}
        await place.http.post("/v1/messages", params={"wait": "30"}, json=body, headers=shown(TOKEN))
    job = (
        await place.http.post("/v1/cron", json={"every": "2h", "message": "hi"}, headers=shown(TOKEN))
    ).json()
    session = (await _sessions(place))[0]
    document = (await place.http.get("/openapi.json", headers=shown(TOKEN))).json()
    return document, {"ulid": session["id"], "key": session["key"], "job_id": job["id"]}


class Trying:
    """Sends drawn requests to every route, those that are right by the document and those that are not."""

    def __init__(
        self, document: dict[str, Any], url: str, token: str, there: dict[str, str], examples: int = EXAMPLES
    ) -> None:
        load_all_checks()
        self._schema = schemathesis.openapi.from_dict(document)
        self._schema.config.update(base_url=url)
        self._token = token
        self._there = there
        self._examples = examples

    def all(self) -> int:
        """Return how many paths were tried."""
        operations = [found.ok() for found in self._schema.get_all_operations()]
        # Wrong tokens are tried there, after which none of this address is looked at for a while.
        operations.sort(key=lambda operation: operation.path == "/v1/login")
        tried = [operation for operation in operations if operation.path not in LEFT_OUT]
        for operation in tried:
            for mode in GenerationMode:
                try:
                    self._try(operation, mode)
                except Unsatisfiable:
                    # A route without parameters cannot be asked wrongly.
                    continue
        return len({operation.path for operation in tried})

    def _try(self, operation: Any, mode: GenerationMode) -> None:
        examples = min(self._examples, SLOW.get(operation.path, self._examples))

        @drawn(
            examples,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), meant=st.booleans())
        def test(case: Any, meant: bool) -> None:
            case.headers = {**(case.headers or {}), **shown(self._token)}
            if mode is GenerationMode.POSITIVE and meant:
                for given_ in (case.path_parameters, case.query):
                    given_.update((name, self._there[name]) for name in given_.keys() & self._there.keys())
            if case.query and "wait" in case.query and mode is GenerationMode.POSITIVE:
                case.query["wait"] = 0
            case.call_and_validate(checks=CHECKS)

        test()
