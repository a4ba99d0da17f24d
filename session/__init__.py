"""Transcripts, turns, context and memory of one conversation."""
