"""The command line: one file per noun, each only prints."""
