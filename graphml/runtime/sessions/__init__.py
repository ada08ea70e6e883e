"""Sequences that their callers compute: sessions, what they share, and beams."""
