"""What a request tells the model, part by part, and which of the history goes with it."""
