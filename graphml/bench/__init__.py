"""Benchmarks: models made for them, tests in llama-bench's words, peers beside them, and what comes out.

Measuring, judging and formatting are separate files. Knows models and sessions; nothing of the command line.
"""
