"""Has this process die in the middle of its work, as a kill would end it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any


def die_at(left: int, steps: Mapping[str, Callable[..., Any]]) -> None:
    """Have this process die before its ``left``-th call of one of these functions of ``os``.

    ``steps`` says by the name of each function what is called in its place.
    """

    def counted(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*args, **more)

        return call

    for name, step in steps.items():
        setattr(os, name, counted(step))
