"""The page in a real Chromium, over real daemons."""
