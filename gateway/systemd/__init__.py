"""What systemd is told, and what it is given: the process's standing, its units, its user and folders."""
