"""First drafts of architecture files: from a Hugging Face config.json, or after a known architecture."""
