"""Keeps a conversation within the model's window: when, where to cut, what the summary is; no files."""
