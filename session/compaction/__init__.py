"""Keeps a conversation within the model's window: when, where to cut, what the summary is; no files."""

from session.compaction.compactor import Compactor, Summary
from session.compaction.counting import CountBasis, Counted, Counts, Estimate, estimate_request
from session.compaction.cuts import call_ids, legal_cuts, nearest_cut, next_cut
from session.compaction.due import Due, Load, due, measure
from session.compaction.plan import Plan, plan
from session.compaction.rules import CompactionRules, Strategy

__all__ = [
    "CompactionRules",
    "Compactor",
    "CountBasis",
    "Counted",
    "Counts",
    "Due",
    "Estimate",
    "Load",
    "Plan",
    "Strategy",
    "Summary",
    "call_ids",
    "due",
    "estimate_request",
    "legal_cuts",
    "measure",
    "nearest_cut",
    "next_cut",
    "plan",
]
