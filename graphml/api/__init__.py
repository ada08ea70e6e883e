"""What a Python program uses: Model, Session, Chat, Batch, embeddings. Knows no command line, no server."""
