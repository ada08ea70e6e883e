"""Rows and elements by index, top-k, and copies in another layout."""
