"""A collector for traces: takes what the exporter posts, and keeps the spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    role: str
    fields: dict[str, Any] = field(default_factory=dict)


class OtlpReceiver:
    """``with OtlpReceiver() as collector``: ``collector.url`` is its address, ``spans`` what came."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.raw = bytearray()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self.rfile.read(int(self.headers["Content-Length"])), self.headers)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, body: bytes, headers: Any) -> None:
        if headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.raw += body
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {each.key: each.value.string_value for each in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Span(
                            name=span.name,
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent_id=span.parent_span_id.hex(),
                            start_ns=span.start_time_unix_nano,
                            end_ns=span.end_time_unix_nano,
                            role=resource.get("chat_gateway.role", ""),
                            fields={each.key: each.value for each in span.attributes},
                        )
                    )

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
