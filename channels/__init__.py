"""The adapters: one chat platform each, and what they have in common."""
