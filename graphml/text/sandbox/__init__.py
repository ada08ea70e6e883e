"""A sandbox for untrusted Jinja templates, with limits on time, memory and attributes.

Knows Jinja; knows nothing of chats, models or tokenizers. `budget` counts, `instrument` puts the counting
into the template's syntax tree, `values` and `template_filters` guard operations that make large values
from small ones, and `environment` combines them.
"""
