"""Faults put into the modules that decide, one at a time, to see whether a test notices: ``make mutants``."""
