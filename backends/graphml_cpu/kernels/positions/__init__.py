"""Rotary position embedding, and scales by position."""
