"""The transcript's lines, from bytes to messages and back; what lies beside it; mostly pure."""
