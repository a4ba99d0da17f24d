"""The benchmarks: each a ratio against a peer or a raw limit that is measured in the same run."""
