"""Rows of several sequences that are sampled together."""
