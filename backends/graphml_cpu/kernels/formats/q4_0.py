"""Q4_0: blocks of 32 in 18 bytes: d, 16 bytes of nibbles; x = d (q - 8)."""

from graphml_cpu.kernels.formats._nibble_blocks import NibbleBlocks

_layout = NibbleBlocks()
make_decode, make_encode, make_read = _layout.make_decode, _layout.make_encode, _layout.make_read
