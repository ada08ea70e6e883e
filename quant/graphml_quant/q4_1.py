"""Q4_1: blocks of 32, float16 scale d and minimum m, 4-bit numbers q; x = d q + m."""

from graphml_quant.nibble_blocks import nibble_format

Q4_1 = nibble_format("q4_1", ggml_type=3, minimum=True)
