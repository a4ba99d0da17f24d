"""The form of a workspace, and its changes."""
