"""What is kept of a chat or person, as a whole: written into one file, or taken away."""
