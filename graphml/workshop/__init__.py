"""What people do with a model's file before it runs: measure it, and make another of it.

Knows models, their files and sessions; nothing of commands, servers or authors' modules.
"""
