"""Lets the AMQP client read messages with odd properties, where it would drop the connection again and again.

Any program may publish, and the broker checks neither text nor times in a message's properties: one that the
client cannot decode would come back at every reconnect, and nothing behind it would ever be answered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pamqp import decode

Decoder = Callable[..., tuple[int, Any]]
TIMESTAMP_BYTES = 8


def install() -> None:
    """Replace the decoders that can refuse a value by ones that read it as far as possible."""
    decode.METHODS["shortstr"] = _short_text
    decode.METHODS["timestamp"] = decode.TABLE_MAPPING[b"T"] = _or(decode.timestamp, _no_time)
    decode.METHODS["table"] = decode.TABLE_MAPPING[b"F"] = _or(decode.field_table, _no_table)
    decode.TABLE_MAPPING[b"A"] = _or(decode.field_array, _no_table)


def _short_text(value: bytes) -> tuple[int, str]:
    length = value[0]
    return length + 1, value[1 : length + 1].decode("utf-8", "replace")


def _or(read: Decoder, instead: Decoder) -> Decoder:
    def lenient(value: bytes) -> tuple[int, Any]:
        try:
            return read(value)
        except Exception:  # noqa: BLE001 - whatever meets one value, the length it begins with skips it
            return instead(value)

    return lenient


def _no_time(_: bytes) -> tuple[int, None]:
    return TIMESTAMP_BYTES, None


def _no_table(value: bytes) -> tuple[int, dict[str, Any]]:
    """Skip a table or an array whole, by the length that it begins with."""
    length: int = struct.unpack(">I", value[:4])[0]
    return length + 4, {}
