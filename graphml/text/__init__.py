"""Text to ids and back: tokenizers, chat templates and their sandbox, stop strings. Runs no model."""
