"""Q5_1: blocks of 32, float16 scale d and minimum m, 5-bit numbers q; x = d q + m."""

from graphml_quant.nibble_blocks import nibble_format

Q5_1 = nibble_format("q5_1", ggml_type=7, minimum=True, fifth=True)
