"""Nemotron 3 (NVIDIA 2025, "Nemotron 3"): Nemotron-H with experts, under another name."""

from graphml_models.nemotron_h import Config as Config
from graphml_models.nemotron_h import build as build
from graphml_models.nemotron_h import sample as sample
