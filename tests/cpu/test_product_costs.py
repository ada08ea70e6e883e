"""Up to how many rows of activations a product takes no panels follows from what the two forms cost."""

import pytest
from graphml_cpu import packed, product_costs
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.product_costs import Cost, Costs

from tests.looped import looped

EVEN = Costs(Cost(10.0, 2.0, 8, 1), Cost(30.0, 1.0, 32, 1))


def test_the_cheaper_form_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 + 2 r against 30 + r: level at 20 rows."""
    monkeypatch.setattr(product_costs, "costs", lambda kind, is_float: EVEN)
    assert packed.few_rows("q4_0", 3200) == 20


def test_rows_of_weights_past_the_end_of_a_panel_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 rows of weights are two panels of 32: with 10 + 2 r against 64 / 40 of 30 + r."""
    monkeypatch.setattr(product_costs, "costs", lambda kind, is_float: EVEN)
    assert packed.few_rows("q4_0", 40) == FEW_ROWS


def test_tokens_past_the_end_of_a_tile_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """26 rows are 32 in tiles of 8: 10 + 2 * 26 is 30 + 32, and 10 + 2 * 27 more."""
    costs = Costs(EVEN.by_rows, Cost(30.0, 1.0, 32, 8))
    monkeypatch.setattr(product_costs, "costs", lambda kind, is_float: costs)
    assert packed.few_rows("q4_0", 3200) == 26


@looped("kind", ["q4_0", "q6_k", "f16", "bf16", "f32", packed.BF16_PAIRS])
def test_every_kind_has_costs(kind: str) -> None:
    found = packed.few_rows(kind, 2048)
    assert 2 <= found <= (FEW_ROWS if kind in ("q4_0", "q6_k") else 2 * FEW_ROWS)
    assert packed.few_rows(kind, 33) >= found


@pytest.mark.parametrize("table", ["_ZEN_4", "_OTHERS", "_HALF_VECTORS"])
def test_steps_with_drafts_have_the_bits_of_single_rows(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation relies on it for up to 16 rows."""
    for costs in getattr(product_costs, table).values():
        monkeypatch.setattr(product_costs, "costs", lambda kind, is_float, costs=costs: costs)
        assert packed.few_rows("f32", 1 << 20) >= 16
