"""Sums, means and softmax of rows."""
