"""The Telegram adapter; ``wire`` alone names its client library."""
