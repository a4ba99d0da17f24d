"""Traces of OpenTelemetry, where they are configured and their packages are installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

from gateway.config.settings import Settings
from gateway.observer import Observer

OTEL_MISSING = "its packages are not installed, so no traces are sent; pip install chat-gateway[otel]"
# Any of them configures the exporter of the official SDK.
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wanted(settings: Settings) -> bool:
    """Say whether traces are to go anywhere."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return bool(settings.telemetry.endpoint) or any(os.environ.get(name) for name in VARIABLES)


def lacks_otel(settings: Settings) -> bool:
    """Say whether traces are wanted and what sends them is not installed."""
    if not wanted(settings):
        return False
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter") is None
    except ModuleNotFoundError:
        return True


def tracers(settings: Settings, role: str) -> list[Observer]:
    """Build what sends traces; nothing where none are wanted, or can be sent."""
    if not wanted(settings) or lacks_otel(settings):
        return []
    # It takes its time, and nearly nobody needs it.
    from gateway.app.tracing import Tracing

    return [Tracing(settings.telemetry.endpoint, sample=settings.telemetry.sample, role=role)]
