"""Inspection of graphs and runs: dumps, diffs, profiles, bisection, viewer. Changes nothing that it reads."""
