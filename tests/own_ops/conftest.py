"""What tests of ops of one's own share: a file that declares an op and its fusion."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphml.ir.own_op import OwnOp
from graphml.loading.own_ops import load_ops_of_file

SOFTPICK = Path(__file__).with_name("softpick.py")


@pytest.fixture
def softpick() -> OwnOp:
    return load_ops_of_file(SOFTPICK)[0]
