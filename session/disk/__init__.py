"""Where the files of a workspace lie, their small versioned state, and the threads that touch them."""
