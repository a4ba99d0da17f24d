"""Work that no letter waits for: it survives a restart, and lets go of what is old."""
