"""Finds what was said: an index of words for each scope, kept up with its files; what it finds, ranked."""
