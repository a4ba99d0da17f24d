"""A gateway process: built from settings, kept up, drained."""
