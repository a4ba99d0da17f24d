"""The last hand-over: from the outbound box to a platform, piece by piece."""
