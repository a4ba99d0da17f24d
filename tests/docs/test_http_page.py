"""``docs/http.md`` names every route that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.app.application import Application
from gateway.config.settings import Settings
from gateway.http.security import Gate
from gateway.http.server import HttpServer, build_app
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "interfaces", "The documentation matches the program in every setting, route, command and example."
)

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "http.md"


def test_every_route_is_on_the_page(tmp_path: Path) -> None:
    application = Application(Settings(workspace=tmp_path))
    paths = build_app(HttpServer(application).chats, Gate(host="127.0.0.1")).openapi()["paths"]
    there = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    # The document has no words for it.
    there.add("WS /v1/ws")

    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    told = {route for heading in headings for route in re.findall(r"`([A-Z]+ /[^`]*)`", heading)}

    assert told == there
