"""The little of HTTP that the model server speaks."""

from __future__ import annotations

import asyncio
import json
from typing import Any


def send_event(writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
    send_piece(writer, b"data: " + json.dumps(data).encode() + b"\n\n")


def send_piece(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


def head(status: int, headers: dict[str, str], length: int | None) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    if length is not None:
        lines.append(f"content-length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def send(writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """Write a whole answer, as JSON where the body is not bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    writer.write(head(status, {"content-type": "application/json"} | (headers or {}), len(data)) + data)


async def read_request(first: bytes, reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    """Read a request whose first byte has come: method, path, headers and body."""
    text = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *rows = text.split("\r\n")
    method, path, _ = start.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (row.partition(":") for row in rows if row)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, path.split("?")[0], headers, body
