"""Benchmarks: generated models, llama-bench's tests, peers for comparison, and results.

Measuring, judging and formatting are separate files. Knows models and sessions; nothing of the command line.
"""
