"""A server for clients of OpenAI's, Anthropic's and llama-server's protocols, on one engine."""
