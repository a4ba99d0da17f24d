"""The second hand-over: lanes, turns, and what a message ends in."""
