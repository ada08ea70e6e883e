"""Kernels over arrays, written as plain functions and compiled by numba: declared, hashed, compiled, kept."""
