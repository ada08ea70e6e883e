"""Chat templates of real models, rendered as Hugging Face renders them."""

from __future__ import annotations

import copy
import json
import threading
import time
from datetime import datetime
from enum import Enum
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols

from graphml.errors import TemplateError, UsageError
from graphml.text.chat_template import ChatTemplate, template_names, template_source
from tests.looped import looped

DATA = Path(__file__).parent.parent / "data" / "templates"
TEMPLATES = sorted(path.stem for path in DATA.glob("*.jinja"))
NOW = datetime(2026, 1, 2, 3, 4, 5)


def read(name):
    return (DATA / f"{name}.jinja").read_text("utf-8")


# --- Hugging Face's way, written down independently: plain Jinja, no sandbox


class Generation(Extension):
    tags = frozenset({"generation"})

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("shown"), [], [], body).set_lineno(line)

    def shown(self, caller):
        return caller()


def plain(source, **variables):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    given = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
    return environment.from_string(source).render(**copy.deepcopy(given))


# --- conversations


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für <eine> Stadt & 'mehr'",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "東京"]},
                "n": {"type": ["integer", "null"]},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "n": 3}},
}
CONVERSATIONS = {
    "question": {"messages": [user("Hello")]},
    "system": {
        "messages": [
            {"role": "system", "content": "Be brief.\n"},
            user("Hi"),
            assistant("  Yo "),
            user("Go on\n"),
        ]
    },
    "answered": {
        "messages": [user("Hi"), assistant("<think>\nhm\n</think>\n\nYo")],
        "add_generation_prompt": False,
    },
    "tools": {
        "messages": [
            user("Weather?"),
            assistant("", tool_calls=[CALL]),
            {"role": "tool", "content": '{"t": 3}', "tool_call_id": "abcdef123", "name": "get_weather"},
            user("And now?"),
        ],
        "tools": [TOOL],
    },
    "variable": {"messages": [user("Hi")], "enable_thinking": False},
    "unusual": {"messages": [assistant("a"), assistant("b")]},
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_hugging_face(name, conversation):
    source, variables = read(name), CONVERSATIONS[conversation]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: NOW)
    expected = refusal = None
    try:
        expected = plain(source, bos_token="<s>", eos_token="</s>", **variables)
    except jinja2.TemplateError as error:
        refusal = str(error)
    if refusal is None:
        assert template.render(**variables) == expected
    else:
        with pytest.raises(TemplateError) as caught:
            template.render(**variables)
        assert refusal in str(caught.value)


EXPECTED = json.loads((DATA / "expected.json").read_text("utf-8"))


@looped("case", EXPECTED, ids=[case["name"] for case in EXPECTED])
def test_prompts_that_llama_cpp_expects(case):
    messages = [
        {"role": "system", "content": "You are a helpful assistant"},
        user("Hello"),
        assistant("Hi there"),
        user("Who are you"),
        assistant("   I am an assistant   "),
        user("Another question"),
    ]
    assert ChatTemplate(case["template"], case["bos"], case["eos"]).render(messages) == case["expected"]


def test_smollm2():
    text = ChatTemplate(read("HuggingFaceTB-SmolLM2-135M-Instruct")).render([user("hi")])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_normal_template_costs_little():
    """Twenty milliseconds are the promise; several times that is the alarm."""
    template = ChatTemplate(read("HuggingFaceTB-SmolLM3-3B"), "<s>", "</s>")
    times = []
    for _ in range(5):
        start = time.thread_time()
        template.render(**CONVERSATIONS["system"])
        times.append(time.thread_time() - start)
    assert min(times) < 0.02


def test_a_long_chat_passes_the_limits():
    """A text that grows with every message is large in sum, small in what is kept."""
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text ~ m.role + m.content %}"
        "{% endfor %}{{ ns.text }}"
    )
    messages = [user("x" * 1000) for _ in range(1000)]
    assert ChatTemplate(source).render(messages) == ("user" + "x" * 1000) * 1000


# --- what templates can use


@looped(
    "source",
    [
        "{{ messages|map(attribute='content')|join('|') }}"
        "{{ messages|selectattr('role', 'equalto', 'x')|list|length }}",
        "{% if messages|selectattr('role', 'equalto', 'nobody') %}a generator is true{% endif %}",
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}"
        "{{ m['content'][::-1] }}{% endfor %}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}"
        "{{ i }}{% endfor %}",
        "{% macro f(a, b=2) %}{{ a ~ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z='ä') }}",
        "{% macro f() %}[{{ caller('x') }}]{% endmacro %}{% call(v) f() %}{{ v }}{% endcall %}",
        "{% for n in [[1, [2, 3]], 4] recursive %}{{ loop(n) if n is iterable else n }}{% endfor %}",
        "{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 10 + i %}{% endfor %}"
        "{{ ns.n }}",
        "{% set x %}  a {{ 1 + 1 }}{% endset %}{{ x|trim|upper }}{% filter upper %}abc{% endfilter %}",
        "{{ 'a-b c'.split('-') }}{{ 'a b'.split() }}{{ 'a/b/c'.rsplit('/', 1) }}{{ 'a\\nb'.splitlines() }}",
        "{{ 'abc'.replace('b', 'x').lstrip('a').title() }}{{ ', '.join(['a', 'b']) }}{{ 'a'.center(5) }}",
        "{{ '%s is %05.2f, %r' % ('pi', 3.14159, 'x') }}{{ '%(a)s' % {'a': 1} }}"
        "{{ '{0:>5}|{0[1]}'.format('xy') }}",
        "{{ '{:>5}|{a[role]}'.format(12, a=messages[0]) }}{{ '%s-%s'|format(1, 'b') }}",
        "{{ {'b': [1, none], 'a': 'ü<\"'}|tojson }}{{ {'b': 1, 'a': 2}|tojson(indent=2, sort_keys=true) }}",
        "{{ [1, 2]|tojson(separators=(',', ':')) }}{{ 'ü'|tojson(ensure_ascii=true) }}{{ 'x'|tojson|safe }}",
        "{{ '<'|safe + '<' }}{{ '<'|escape ~ '&' }}{{ ('<b>'|safe).replace('b', '<') }}{{ '<'|e|length }}",
        "{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.items()|list }}",
        "{% for g, ms in messages|groupby('role') %}{{ g }}{{ ms|length }}{% endfor %}"
        "{{ [3, 1, 2]|sort|first }}",
        "{% for g in messages|groupby('role') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}"
        "{{ [1, 2]|sum }}",
        "{{ [[1], [2]]|sum(start=[]) }}{{ [1, 1, 2]|unique|list }}{{ 'abc'|reverse }}"
        "{{ 3.7|round|int }}{{ '5'|int + 1 }}",
        "{{ [1, 2, 3]|batch(2)|list }}{{ 'a\\nb'|indent(2, true) }}{{ undefined_thing }}{{ x|default('d') }}",
        "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 1 / 4 }}{{ -3|abs }}{{ 'a' * 3 }}{{ [0] * 2 }}"
        "{{ (1, 2) + (3,) }}",
        "{{ 1 < 2 <= 2 }}{{ 'a' in 'abc' }}{{ 1 in [1, 2] }}{{ none is none }}"
        "{{ messages is sequence }}{{ 5 is odd }}",
        "{{ strftime_now('%d %B %Y') }}{{ cycler('a', 'b').next() }}"
        "{{ messages[0].get('name', 'none') }}{{ dict(a=1) }}",
        "{% for m in messages %}{% generation %}{{ m.content }}"
        "{% endgeneration %}\n{% endfor %}   {% if 1 %}\nx\n{% endif %}",
        "{% for m in messages %}{{ (loop.previtem|default({})).role }}{{ loop.cycle('o', 'e') }}"
        "{{ loop.changed(m.role) }}{% endfor %}",
        "{{ messages[1:] }}{{ messages[-1]['content'] }}{{ 'abc'[:2] }}{{ messages|first }}"
        "{{ (messages|last).role }}",
    ],
)
def test_language_and_helpers_equal_plain_jinja(source):
    messages = [user("Hello"), assistant("Wörld"), user("x")]
    expected = plain(source, messages=messages)
    assert ChatTemplate(source, now=lambda: NOW).render(messages) == expected


def test_special_tokens_and_variables():
    source = "{{ bos_token }}{{ unk_token }}{{ eos_token is defined }}{{ pad_token is defined }}"
    source += "{{ mood }}{{ documents }}"
    template = ChatTemplate(source, "<s>", special_tokens={"unk_token": "<u>"})
    assert template.render([], mood="good") == "<s><u>FalseFalsegoodNone"


def test_break_inside_generation():
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% break %}{% endgeneration %}{% endfor %}"
    )
    assert ChatTemplate(source).render([user("a"), user("b")]) == "a"


def test_threads_share_a_template():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    found = {}

    def run(n):
        found[n] = [template.render([user(str(n))] * 50) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [str(n) * 50] * 20 for n in range(4)}


# --- errors


@looped(
    ("source", "wanted"),
    [
        ("a\n{% if %}", "line 2: Expected an expression"),
        ("\n\n{% for m in messages %}", "line 3: Unexpected end of template"),
        ("{{ 1|nosuch }}", "line 1: No filter named 'nosuch'"),
        ("\n{{ messages[0].content.a.b }}", "line 2: 'str object' has no attribute 'a'"),
        ("\n\n{{ raise_exception('Roles must alternate') }}", "line 3: Roles must alternate"),
        ("{% macro f() %}\n{{ 1 // 0 }}{% endmacro %}\n{{ f() }}", "line 2: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "line 1: TypeError"),
        ("\n{% include 'x' %}", "line 2: a chat template cannot load 'x'"),
        ("{% import 'os' as os %}", "line 1: a chat template cannot load 'os'"),
        ("{% extends 'x' %}", "line 1: a chat template cannot load 'x'"),
        ("{% block a %}{{ self.a() }}{% endblock %}", "line 1: the template calls itself too deeply"),
        ("{{ messages|tojson(indent=4, separators=5) }}", "line 1: TypeError"),
    ],
)
def test_errors_name_the_line(source, wanted):
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source, name="special").render([user("hi")])
    assert f"chat template 'special', {wanted}" in str(caught.value)


class Colour(Enum):
    RED = 1


@looped(
    ("arguments", "wanted"),
    [
        ({"messages": "hello"}, "messages: wanted a list"),
        ({"messages": {"role": "user"}}, "messages: wanted a list"),
        ({"messages": ["hello"]}, r"messages\[0\]: wanted a mapping"),
        ({"messages": [{"content": object()}]}, r"messages\[0\].content: wanted text.*got object"),
        ({"messages": [], "tools": [print]}, r"tools\[0\]: wanted text.*builtin_function"),
        ({"messages": [], "mood": Colour.RED}, "mood: wanted text.*got Colour"),
        ({"messages": [{(1, 2): "x"}]}, r"messages\[0\] key: wanted"),
    ],
)
def test_only_plain_data_comes_in(arguments, wanted):
    with pytest.raises(UsageError, match=wanted):
        ChatTemplate("x").render(**arguments)


def test_data_that_holds_itself_is_refused():
    message = user("hi")
    message["self"] = message
    with pytest.raises(UsageError, match="nested less than"):
        ChatTemplate("x").render([message])


def test_source_must_be_text():
    with pytest.raises(UsageError, match="source: wanted"):
        ChatTemplate(None)


# --- which template a file has


KEY = "tokenizer.chat_template"


def test_missing_template_is_an_error_that_helps():
    with pytest.raises(TemplateError, match=r"has no chat template.*--template FILE"):
        template_source({"general.architecture": "llama"})


def test_named_templates():
    metadata = {KEY: "plain", f"{KEY}.tool_use": "tools", "tokenizer.chat_templates": ["tool_use", "gone"]}
    assert template_names(metadata) == ("default", "tool_use")
    assert template_source(metadata) == "plain"
    assert template_source(metadata, "default") == "plain"
    assert template_source(metadata, "tool_use") == "tools"
    with pytest.raises(TemplateError, match="named 'rag'; it has: default, tool_use"):
        template_source(metadata, "rag")
    named_only = {f"{KEY}.rag": "r"}
    assert template_names(named_only) == ("rag",)
    with pytest.raises(TemplateError, match="named 'default'; it has: rag"):
        template_source(named_only)


def test_damaged_template_metadata():
    with pytest.raises(TemplateError, match="wanted text, got int"):
        template_source({KEY: 5})
    with pytest.raises(TemplateError, match="wanted a list of names, got int"):
        template_names({"tokenizer.chat_templates": 5})
