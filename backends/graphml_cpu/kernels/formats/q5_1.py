"""Q5_1: blocks of 32 in 24 bytes: d, m, 32 fifth bits, 16 bytes of nibbles; x = d q + m."""

from graphml_cpu.kernels.formats._nibble_blocks import NibbleBlocks

_layout = NibbleBlocks(minimum=True, fifth=True)
make_decode, make_encode, make_read = _layout.make_decode, _layout.make_encode, _layout.make_read
