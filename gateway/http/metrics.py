"""``/metrics``: how the gateway stands and what it counted, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from gateway.http.shape import needs
from gateway.service.gauges import metrics

if TYPE_CHECKING:
    from gateway.app.application import Application


def routes(application: Application) -> APIRouter:
    """Build the route of the metrics."""
    router = APIRouter()

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=PlainTextResponse,
        **needs("read"),
    )
    async def get_metrics() -> Response:
        return Response(await metrics(application), media_type=CONTENT_TYPE_LATEST)

    return router
