"""Text to ids and back: tokenizers, chat templates and their process, stop strings. Runs no model."""
