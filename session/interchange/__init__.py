"""Conversations in the file formats of other programs: pure codecs over one neutral value."""
