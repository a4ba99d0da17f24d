"""The first hand-over: from a platform or a client into the inbound box."""
