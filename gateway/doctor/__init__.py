"""What doctor checks, one file a subject."""
