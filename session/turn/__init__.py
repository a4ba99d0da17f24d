"""The work on one letter: turns, commands, and what stops them."""
