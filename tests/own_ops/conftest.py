"""What tests of ops of one's own share: no op that a test declares is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graphml.ir import op_table
from graphml.ir.own_op import OwnOp
from graphml.loading.own_ops import load_ops_of_file

SOFTPICK = Path(__file__).with_name("softpick.py")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = set(op_table.own_ops())
    yield
    op_table.forget(*set(op_table.own_ops()) - before)


@pytest.fixture
def softpick() -> OwnOp:
    return load_ops_of_file(SOFTPICK)[0]
