"""Tokenizers from GGUF metadata: text to ids and back, exactly like llama.cpp, or `tokenizers`.

`load_tokenizer` is the entry point. Knows vocabularies; nothing of models, graphs or files.
"""

from __future__ import annotations

from graphml.text.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from graphml.text.tokenizer.streaming import Stream
from graphml.text.tokenizer.tokenizer import Tokenizer
from graphml.text.tokenizer.tokenizer_loading import load_tokenizer

__all__ = ["PRE_TOKENIZERS", "Stream", "Tokenizer", "load_tokenizer"]
