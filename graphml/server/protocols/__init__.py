"""The protocols of OpenAI, Anthropic, llama-server, Mistral and ollama: read requests, write answers."""
