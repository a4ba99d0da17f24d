"""Kills, cuts and faults at random while messages flow, and what they did to each guarantee."""
