"""Vectors of embedding models: checked, of length 1, compared by their cosine."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from math import hypot, isfinite
from operator import mul
from typing import Any

from session.models.model import Vector

# Four bytes a number round a vector's length: so far from 1 it may be.
_SPARE = 0.01


def unit_vectors(data: object, count: int) -> list[Vector]:
    """Read the ``data`` of an embedding answer: ``count`` vectors, in the order that was asked.

    Raises:
        ValueError: fewer or more vectors, not all of one length, or one without a direction.
    """
    items = list(data) if isinstance(data, list | tuple) else []
    if len(items) != count:
        raise ValueError(f"{len(items)} vectors for {count} texts")
    # Providers may answer in another order, and then say by an index which text each vector is of.
    indexes = [_field(item, "index") for item in items]
    if sorted(index for index in indexes if isinstance(index, int)) == list(range(count)):
        items.sort(key=lambda item: int(_field(item, "index")))
    vectors = [_unit(_field(item, "embedding")) for item in items]
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("vectors of several lengths in one answer")
    return vectors


def cosine(left: Vector, right: Vector) -> float:
    """Compare two vectors of length 1, and of the same number of dimensions."""
    return float(sum(map(mul, left, right)))


def to_bytes(vector: Vector) -> bytes:
    """Write a vector as four bytes a dimension."""
    return array("f", vector).tobytes()


def from_bytes(data: bytes) -> Vector | None:
    """Read a vector; None for what ``to_bytes`` cannot have written."""
    vector = array("f")
    if not data or len(data) % vector.itemsize:
        return None
    vector.frombytes(data)
    return vector if abs(hypot(*vector) - 1) < _SPARE else None


def _unit(numbers: object) -> Vector:
    if not isinstance(numbers, Iterable) or isinstance(numbers, str | bytes | Mapping):
        raise ValueError("a vector that is not a list of numbers")
    try:
        raw = array("d", numbers)
    except (TypeError, OverflowError) as error:
        raise ValueError("a vector that is not a list of numbers") from error
    length = hypot(*raw)
    if not isfinite(length) or length == 0:
        raise ValueError("a vector of length 0")
    unit = array("f", (number / length for number in raw))
    if not abs(hypot(*unit) - 1) < _SPARE:
        raise ValueError("a vector of length 0")
    return unit


def _field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
