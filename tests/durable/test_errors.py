"""What an error came from is followed to its end, whatever a library made of the chain."""

from __future__ import annotations

from durable import causes


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_causes_are_told_outermost_first() -> None:
    first, second, third = ValueError("first"), OSError("second"), KeyError("third")
    raised_from(first, second).__context__ = KeyError("not its cause")
    second.__context__ = third

    assert list(causes(first)) == [first, second, third]


def test_a_ring_of_causes_has_an_end() -> None:
    """Each points at the other, as an AMQP client leaves them whose connection ended while it was opened."""
    first, second = ValueError("first"), OSError("second")
    raised_from(first, second)
    raised_from(second, first)

    assert list(causes(first)) == [first, second]
