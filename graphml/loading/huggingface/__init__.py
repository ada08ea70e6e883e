"""Folders of Hugging Face transformers as model files: config, weights, tokenizers, quantised layers."""
