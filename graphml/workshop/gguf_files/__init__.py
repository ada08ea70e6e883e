"""GGUF files as they are: keys changed, files split and merged, two compared, parts taken out."""
