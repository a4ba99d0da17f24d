"""Which tools may run, and what waits for a person's word."""
