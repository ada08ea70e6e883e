"""Folders of Hugging Face transformers as model files: config.json, safetensors, tokenizers, quantised layers."""
