"""What is shown of values at a prompt and in a notebook: short, of bounded size, and escaped."""

from __future__ import annotations

import html.parser

import numpy as np

import graphml
from graphml import SamplingParams, Token
from graphml.inspect.compare.compare import ComparedValue
from graphml.inspect.compare.comparison import Comparison
from graphml.inspect.compare.tolerances import difference
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.system.notebook_html import html_table

EVIL = '<script>alert("x")</script>'


class Tags(html.parser.HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes = dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_params_show_what_differs_from_the_defaults() -> None:
    assert repr(SamplingParams()) == "SamplingParams()"
    params = SamplingParams(temperature=0.8, stop=("a",), logit_bias={3: 1.0})
    assert repr(params) == "SamplingParams(temperature=0.8, logit_bias={3: 1.0}, stop=('a',))"
    assert eval(repr(params)) == params


def test_tokens_and_results(model: graphml.Model) -> None:
    assert repr(Token(3, " a")) == "Token(3, ' a')"
    assert repr(Token(3, "a", 2)) == "Token(3, 'a', index=2)"
    result = model.generate("hello", max_tokens=2, logprobs=1)
    assert str(result) == result.text != repr(result)
    assert repr(result).endswith(f", length: {result.n_prompt} tokens of the prompt, 2 generated)")
    (token, *_) = model.session().generate("hello", max_tokens=1, logprobs=0)
    assert f"logprob={token.logprob:.4g})" in repr(token)
    assert Tags(result._repr_html_()).tags.count("tr") == 3
    assert Tags(model.generate("hello", max_tokens=2)._repr_html_()).tags.count("tr") == 2


def test_models_engines_and_handles(model: graphml.Model) -> None:
    assert f"llama, {model.n_params:,} parameters, context of 160 tokens, backend ref" in repr(model)
    shown = Tags(model._repr_html_())
    assert repr(model) in shown.text
    assert "n_layer" in shown.text
    with model.engine(max_sequences=3, n_ctx=64) as engine:
        handle = engine.submit("hello", max_tokens=2)
        handle.result()
        assert repr(handle) == "Handle(ended, 2 tokens so far)"
        assert "0 running, 0 waiting; 3 sequences of 64 tokens" in repr(engine)


def test_a_chat_is_escaped(model: graphml.Model) -> None:
    chat = model.chat()
    chat.add_user(EVIL)
    assert repr(chat) == "Chat(1 messages, 0 of 160 tokens; the last one waits for respond())"
    shown = Tags(chat._repr_html_())
    assert "script" not in shown.tags
    assert EVIL in shown.text


def test_a_template_says_its_name_and_length(model: graphml.Model) -> None:
    length = len(model.template.source)
    assert repr(model.template) == f"ChatTemplate('default', {length} characters)"


def test_graphs_are_short_and_escaped(model: graphml.Model) -> None:
    graph = model.graph("build")
    assert repr(graph).startswith(f"Graph({len(graph.nodes)} nodes: ")
    assert len(repr(graph)) < 200
    g = Builder()
    evil = g.finish(out=g.weight(EVIL, F32, (2, 2)))
    assert EVIL in Tags(evil._repr_html_()).text
    assert "script" not in Tags(evil._repr_html_()).tags


def test_a_printed_graph_is_its_text_form(model: graphml.Model) -> None:
    graph = model.graph()
    lines = str(graph).splitlines()
    assert lines[0] == "output logits = %logits"
    assert len(lines) == len(graph.nodes) + len(graph.outputs)
    assert str(model.graph) == str(graph)


def test_a_generation_says_how_to_read_it(model: graphml.Model) -> None:
    whole = model.generate("hello", max_tokens=4, temperature=0).text
    tokens = model.session().generate("hello", max_tokens=4, temperature=0)
    assert "iterate over it, or read .text" in repr(tokens)
    assert whole.startswith(next(tokens).piece)
    assert tokens.text == str(tokens) == whole
    tokens.close()


def test_tables_are_bounded() -> None:
    page = Tags(html_table(EVIL, ("a", EVIL), [("x" * 5000, EVIL)] * 1000))
    assert set(page.tags) == {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert page.tags.count("tr") == 61
    assert "940 more rows" in page.text
    assert len(page.text) < 61 * 500


def test_profiles_and_comparisons(model: graphml.Model) -> None:
    with graphml.load("stories260k", threads=1, kv="f32") as stories:
        profile = stories.profile(4, max_tokens=1, rounds=1)
    assert repr(profile).startswith("Profile(stories260K.bin: llama on cpu, 1 threads; prompt: 4 tokens in")
    assert "| op" in str(profile)
    assert Tags(profile._repr_html_()).tags.count("table") == 2
    value = ComparedValue("prompt", EVIL, "add", "add", "f32", (2,), difference(np.ones(2), np.zeros(2)))
    comparison = Comparison("m", "cpu", "reference", 2, (value,))
    assert "1 values, largest NMSE" in repr(comparison)
    assert "<script" not in comparison._repr_html_()
    assert "no values" in repr(Comparison("m", "cpu", "reference", 2, ()))


def test_tokens_are_rows(model: graphml.Model) -> None:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("hello")
    rows = model.tokenizer.rows("hello")
    assert [token for token, _ in rows] == ids
    assert model.tokenizer.rows(ids) == rows
    assert Tags(rows._repr_html_()).tags.count("tr") == len(ids) + 1
    halves = model.tokenizer.rows(model.tokenizer.encode("\N{GRINNING FACE}", add_special=False))
    assert {"b'\\xf0'", "b'\\x9f'"} <= {text for _, text in halves}


def test_the_viewer_is_a_frame_that_reaches_nothing_else(model: graphml.Model) -> None:
    viewer = model.viewer()
    assert repr(viewer) == f"GraphPage(title='graphs of {model.path.name}')"
    frame = Tags(viewer._repr_html_())
    assert frame.tags == ["iframe"]
    assert frame.attributes["sandbox"] == "allow-scripts"
    assert frame.attributes["srcdoc"] == viewer.html
