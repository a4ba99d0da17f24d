"""The form of a workspace: raised by a start after a copy, lowered again on request."""
