"""Subagents: which there are, on disk; the tool that starts one."""
