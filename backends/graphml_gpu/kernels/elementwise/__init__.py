"""Elementwise operations and gates."""
