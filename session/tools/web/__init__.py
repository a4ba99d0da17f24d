"""Reads pages of the public web: what may be asked, how it is asked, and what of a page is text."""
