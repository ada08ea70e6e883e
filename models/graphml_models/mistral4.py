"""Mistral Small 4 and Large 3 (Mistral AI 2025, 2026): the same graph as DeepSeek-V3."""

from graphml_models.deepseek2 import Config as Config
from graphml_models.deepseek2 import ahead as ahead
from graphml_models.deepseek2 import build as build
from graphml_models.deepseek2 import sample as sample
