"""The whole workspace in one file: written beside running daemons, looked at, brought back."""
