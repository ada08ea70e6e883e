"""Templates of a model by name; what is given in their place by name or as text."""

from __future__ import annotations

import pytest

from graphml.api.model_templates import ModelTemplates
from graphml.errors import TemplateError
from graphml.text.tokenizer import Tokenizer, load_tokenizer
from graphml.weights import open_model
from tests import tiny_model

METADATA = {
    "tokenizer.chat_template": "default {{ bos_token }}",
    "tokenizer.chat_template.tool_use": "with tools",
    "tokenizer.chat_template.broken": "{% for",
    "tokenizer.chat_templates": ["tool_use", "broken"],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    return load_tokenizer(open_model(path).metadata)


def test_the_files_templates_by_name(tokenizer: Tokenizer) -> None:
    templates = ModelTemplates(METADATA, tokenizer)  # type: ignore[arg-type]
    assert list(templates) == ["default", "tool_use", "broken"]
    assert templates["default"].render([]) == "default <|begin|>"
    assert templates["default"] is templates["default"]
    assert templates["tool_use"].render([]) == "with tools"
    assert "rag" not in templates
    with pytest.raises(TemplateError, match="chat template 'broken', line 1"):
        templates["broken"]


def test_a_template_is_given_by_name_or_as_text(tokenizer: Tokenizer) -> None:
    for given, renders in (("tool_use", "with tools"), ("{{ 1 }}", "1"), ("plain text", "plain text")):
        templates = ModelTemplates(METADATA, tokenizer, given)  # type: ignore[arg-type]
        assert list(templates) == ["default"]
        assert templates["default"].render([]) == renders
    with pytest.raises(
        TemplateError, match=r"wanted Jinja text, or a name .*\(default, tool_use, broken\); got 'rag'"
    ):
        ModelTemplates(METADATA, tokenizer, "rag")  # type: ignore[arg-type]
