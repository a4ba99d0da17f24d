"""What a client may ask for, whether it comes by HTTP, page or command line."""
