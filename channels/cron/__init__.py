"""The clock as a channel: schedules, jobs, and their file."""
