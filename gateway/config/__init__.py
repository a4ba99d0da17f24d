"""The configuration: read once, checked whole, shown without secrets."""
