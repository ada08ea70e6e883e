"""Ids to text and back: tokenizer, sampling, chat templates, sessions. Knows no command line, no server."""
