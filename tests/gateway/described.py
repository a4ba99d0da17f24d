"""Checks that what a server answers is what its OpenAPI document says: status, type, and each field."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
from fastapi import FastAPI


class Described:
    """The document of one application, to which answers are held."""

    def __init__(self, app: FastAPI) -> None:
        self._document = app.openapi()
        self._routes = [
            (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(path))), methods)
            for path, methods in self._document["paths"].items()
        ]
        # Of two that fit, the one with more of its own text.
        self._routes.sort(key=lambda route: -len(route[0].pattern))

    async def check(self, answer: httpx.Response) -> None:
        """Hold one answer to what is said of its route; a stream's body is left alone.

        Raises:
            AssertionError: it says something else.
        """
        operation = self._operation(answer.request)
        if operation is None:
            return
        status = str(answer.status_code)
        assert status in operation["responses"], f"{answer.request.url}: {status} is not described"
        said = self._followed(operation["responses"][status])
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in said["content"], f"{answer.request.url}: {kind} is not described for {status}"
        if kind == "application/json":
            await answer.aread()
            schema = {**said["content"][kind]["schema"], "components": self._document["components"]}
            jsonschema.Draft202012Validator(schema).validate(answer.json())

    def _operation(self, request: httpx.Request) -> dict[str, Any] | None:
        path = request.url.raw_path.decode().partition("?")[0]
        for pattern, methods in self._routes:
            if pattern.fullmatch(path) and request.method.lower() in methods:
                found: dict[str, Any] = methods[request.method.lower()]
                return found
        return None

    def _followed(self, said: dict[str, Any]) -> dict[str, Any]:
        name = said.get("$ref", "").rpartition("/")[2]
        found: dict[str, Any] = self._document["components"]["responses"][name] if name else said
        return found
