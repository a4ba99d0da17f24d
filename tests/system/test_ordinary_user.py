"""What holds for commands of a model holds for a gateway of an ordinary user: root's runs none."""

from __future__ import annotations

import os

import pytest

from tests.support import ordinary_user

WITHIN_S = 900


@pytest.mark.skipif(os.geteuid() != 0, reason="they run as such a user anyway")
@pytest.mark.timeout(WITHIN_S + 60)
def test_as_an_ordinary_user() -> None:
    done = ordinary_user.run(WITHIN_S)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
