"""Attributes of a token: bits in a uint16, made from the file's token types. Constants alone."""

from __future__ import annotations

from typing import Final

import numpy as np

UNKNOWN: Final = np.uint16(1)
UNUSED: Final = np.uint16(2)
NORMAL: Final = np.uint16(4)
CONTROL: Final = np.uint16(8)
USER_DEFINED: Final = np.uint16(16)
BYTE: Final = np.uint16(32)
LSTRIP: Final = np.uint16(128)
"""The token includes the whitespace to its left."""
RSTRIP: Final = np.uint16(256)
"""The token includes the whitespace to its right."""

HIDDEN: Final = UNKNOWN | CONTROL
"""Tokens that plain text does not encode to and that decoding can skip."""
SPECIAL: Final = HIDDEN | USER_DEFINED
"""Tokens that are found in a text before it is encoded."""

TYPE_NORMAL: Final = 1
TYPE_USER_DEFINED: Final = 4
TYPE_UNUSED: Final = 5
# GGUF's token types: undefined, normal, unknown, control, user defined, unused, byte.
FROM_TYPE: Final = np.array([0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE], np.uint16)
