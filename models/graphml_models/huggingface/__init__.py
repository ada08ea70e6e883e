"""Mappings of Hugging Face transformers' classes to the architectures: names, fields, changes of weights.

One module per family, which defines `FAMILY`; it is found here. Sources: `modeling_*.py` of transformers, and
llama.cpp's converters for GGUF's names.
"""
