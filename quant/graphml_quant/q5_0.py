"""Q5_0: blocks of 32, a float16 scale d and 5-bit numbers q; x = d (q - 16)."""

from graphml_quant.nibble_blocks import nibble_format

Q5_0 = nibble_format("q5_0", ggml_type=6, fifth=True)
