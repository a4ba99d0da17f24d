"""Builds the embedding model from Settings."""

from __future__ import annotations

from gateway.config.settings import Settings
from session.context.embeddings import LIMIT_S, Embeddings
from session.disk.local_files import local_state
from session.models.llm import LiteLLMEmbedder, provider_of
from session.models.model import Embedder


def build_embedder(settings: Settings, *, timeout_s: float = LIMIT_S) -> Embedder | None:
    """Choose the embedding model; None where none is configured.

    Address and key are those of the model where the same provider serves both.
    """
    model = settings.model
    if not model.embedding:
        return None
    same = provider_of(model.embedding) == provider_of(model.name)
    return LiteLLMEmbedder(
        name=model.embedding,
        api_base=model.api_base if same else "",
        api_key=model.api_key.get_secret_value() if same else "",
        timeout_s=timeout_s,
    )


def build_embeddings(settings: Settings) -> Embeddings | None:
    """Build what compares messages; None without an embedding model, and beside ``echo``."""
    embedder = build_embedder(settings)
    if embedder is None or settings.model.name == "echo":
        return None
    return Embeddings(embedder, local_state(settings.state))
