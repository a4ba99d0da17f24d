"""What tests of whole gateways share: the two kinds of queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.place import on


@pytest.fixture(params=["embedded", "rabbitmq"])
def queue(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The configuration of each kind of queue, or of the one that a test names: nothing for the embedded."""
    if request.param == "embedded":
        return {}
    return on(request.getfixturevalue("broker"), request.getfixturevalue("broker_name"))
