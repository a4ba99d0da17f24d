"""The second hand-over: lanes, turns, and what a letter ends in."""
