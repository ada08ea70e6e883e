"""Q4_0: blocks of 32, a float16 scale d and 4-bit numbers q; x = d (q - 8)."""

from graphml_quant.nibble_blocks import nibble_format

Q4_0 = nibble_format("q4_0", ggml_type=2)
