"""The queue: what a mailbox promises, and the two kinds that keep it."""
