"""The last hand-over: from the outbound queue to a platform, chunk by chunk."""
