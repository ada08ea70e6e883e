"""The protocols: OpenAI's, Anthropic's, llama-server's, Mistral's; each reads requests and writes answers."""
