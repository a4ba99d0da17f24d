"""Contracts: what every implementation of a Protocol keeps, as tests."""
