"""One request to a model as whoever counts hears of it: what it took, when its first text came, its cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import durable
from session.models.model import Answer, OnDelta, Usage


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request that is over.

    Args:
        model: who was asked, as configured.
        began_ns: when, in nanoseconds since 1970.
        took_s: until its end.
        first_s: until the first piece of text; None: there was none.
        usage: as the provider counted it; None where it failed, or nobody counted.
        failed: the class of its error; empty: it was answered.
    """

    model: str
    began_ns: int
    took_s: float
    first_s: float | None
    usage: Usage | None
    failed: str = ""


HeardCall = Callable[[ModelCall], None]


class Written:
    """Passes the text of an answer on, and remembers whether there was any, and when."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self.any = False
        self.first_at: float | None = None
        self._on_delta = on_delta

    @property
    def shown(self) -> bool:
        """Whether somebody reads the text as it is written."""
        return self._on_delta is not None

    def __call__(self, text: str) -> None:
        """Take the next piece."""
        if self.first_at is None:
            self.first_at = durable.monotonic()
        if self._on_delta is not None:
            self.any = True
            self._on_delta(text)


@contextmanager
def told(heard: HeardCall | None, model: str, written: Written) -> Iterator[list[Answer]]:
    """Tell ``heard`` of the request that is made within; its answer is put into the list that is yielded."""
    answers: list[Answer] = []
    if heard is None:
        yield answers
        return
    began_ns, began = durable.wall_ns(), durable.monotonic()
    failed = ""
    try:
        yield answers
    except BaseException as error:
        failed = type(error).__name__
        raise
    finally:
        first_s = written.first_at - began if written.first_at is not None else None
        usage = answers[0].usage if answers else None
        heard(ModelCall(model, began_ns, durable.monotonic() - began, first_s, usage, failed))
