"""What is kept of old messages: notes, history, names and summaries, and who may read them."""
