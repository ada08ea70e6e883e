"""Candidates of one step: their scores and order, what a filter sees of them, and the random choice."""
