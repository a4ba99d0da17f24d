"""Whatever others write is read without a crash or a hang: targets, corpora, a guided search."""
