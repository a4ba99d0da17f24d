"""The mailbox that needs nothing installed: one SQLite file, one daemon."""
