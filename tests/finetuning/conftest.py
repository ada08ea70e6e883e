"""Tests of fine-tuning; those that train import torch, and `tests/authoring/test_in_torch.py` runs them."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_training.py", "test_finetune_command.py"]
