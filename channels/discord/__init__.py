"""The Discord adapter; ``gateway`` and ``rest`` alone name its client library."""
