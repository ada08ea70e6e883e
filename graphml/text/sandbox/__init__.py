"""Runs a stranger's Jinja template with limits on time, memory and reach.

Knows Jinja; knows nothing of chats, models or tokenizers. `budget` counts, `instrument` puts the counting
into the template's syntax tree, `values` and `filters` guard whatever can make much out of little, and
`environment` puts them together.
"""
