"""Hostile chat templates: every one ends, soon and small, and leaves the caller's data alone."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

from graphml import settings
from graphml.errors import TemplateError
from graphml.text.chat_template import ChatTemplate, TemplateLimits

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
NS = "{% set ns = namespace(s='a' * 1000000, x=['a'], l=[]) %}"
TEXTS = "{% set a = 'a' * 1000000 %}{% set b = 'a' * 900000 ~ 'b' %}"


def forever(statement, start=NS):
    inner = (
        f"{{% for i in range(100000) %}}{{% for j in range(100000) %}}{statement}{{% endfor %}}{{% endfor %}}"
    )
    return start + inner


REACH = {
    "mro": "{{ ''.__class__.__mro__ }}",
    "class by name": "{{ ''['__class__'] }}",
    "class by attr": "{{ ''|attr('__class__') }}",
    "class by map": "{{ ['']|map(attribute='__class__')|list }}",
    "class by sort": "{{ ['', '']|sort(attribute='__class__') }}",
    "class by format": "{{ '{0.__class__}'.format('') }}",
    "class by format from a list": "{{ (['{0.__class__}']|map(attribute='format')|first)('') }}",
    "class by format filter": "{{ '{0.__class__}'|attr('format')('') }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "function globals": "{{ raise_exception.__globals__ }}",
    "cycler globals": "{{ cycler.__init__.__globals__.os }}",
    "joiner globals": "{{ joiner.__init__.__globals__ }}",
    "namespace globals": "{{ namespace.__init__.__globals__ }}",
    "namespace attributes": "{{ namespace(a=1)._Namespace__attrs }}",
    "template reference": "{{ self._TemplateReference__context }}",
    "macro function": "{% macro f() %}{% endmacro %}{{ f._func }}",
    "loop iterable": "{% for i in [1] %}{{ loop._iterable }}{% endfor %}",
    "undefined": "{{ nothing.__init__.__globals__ }}",
    "type's method": "{{ dict.mro() }}",
    "classmethod": "{{ dict.fromkeys(range(10)) }}",
    "to_bytes": "{{ (5).to_bytes(1000000000, 'big') }}",
    "lipsum": "{{ lipsum(n=1000000000) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% from 'os' import system %}",
}
MUTATION = {
    "append of a mapping": "{{ messages[0].append(1) }}",
    "insert by filter": "{{ (messages|attr('insert'))(0, 1) }}",
    "extend": "{{ messages.extend([1]) }}",
    "pop": "{{ messages[0].pop('role') }}",
    "update": "{{ messages[0].update({'role': 'x'}) }}",
    "clear": "{{ messages.clear() }}",
    "sort": "{{ messages.sort() }}",
    "namespace over messages": "{% set ns = messages %}{% set ns.role = 1 %}",
}
TIME = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": forever(""),
    "loop that passes all items over": "{% for i in range(90000) %}{% for j in range(90000) if false %}"
    "{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    "caller": "{% macro f() %}{{ caller() }}{% endmacro %}" + forever("{% call f() %}x{% endcall %}"),
    "find": TEXTS + forever("{% if a.find(b) %}{% endif %}"),
    "in": TEXTS + forever("{{ b in a }}"),
    "compare": TEXTS + "{% set c = 'a' * 999999 ~ 'b' %}" + forever("{% if a == c %}{% endif %}"),
    "compare side by side": TEXTS
    + "{% set c = 'a' * 1000000 %}"
    + forever("{{ " + "a == c, " * 500 + " }}", ""),
    "sort": "{% set a = range(20000)|list %}{% set ns = namespace(l=[]) %}{% for i in range(20) %}"
    "{% set ns.l = ns.l + [[a, i]] %}{% endfor %}" + forever("{{ (ns.l|sort)|length }}", ""),
    "braces": forever("{{ ('{{' * 1000000).format()|length }}"),
    "slices": forever("{{ ns.s[1:]|length }}"),
    "loop.changed": forever("{{ loop.changed(ns.s ~ i) }}"),
    "a list that grows while it is read": "{% for x in messages %}{{ messages.append(x) }}{% endfor %}",
}
SHARED_PARTS = {
    "lists": "{% set ns.x = [ns.x, ns.x] %}",
    "mappings": "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
    "tuples": "{% set ns.x = (ns.x, ns.x) %}",
    "sums of lists": "{% set ns.x = ns.x + [ns.x] + [ns.x] %}",
    "dict()": "{% set ns.x = dict(a=ns.x, b=ns.x) %}",
    "batch": "{% set ns.x = [ns.x, ns.x]|batch(2)|list %}",
    "repeated": "{% set ns.x = [ns.x] * 2 %}",
}
for made, statement in SHARED_PARTS.items():
    TIME[f"shared {made}"] = (
        NS + f"{{% for i in range(60) %}}{statement}{{% endfor %}}{{{{ ns.x|string|length }}}}"
    )
TIME["shared varargs"] = (
    "{% macro f(n) %}{{ f(n-1, varargs, varargs) if n else varargs|string|length }}{% endmacro %}"
    "{{ f(60, 1) }}"
)
TIME["shared kwargs"] = (
    "{% set ns = namespace(x=1) %}{% macro w() %}{% set ns.x = kwargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ w(a=ns.x, b=ns.x) }}{% endfor %}{{ ns.x|string|length }}"
)
# Sizes that a machine could just give: an attack that asks for more than there is would fail by itself.
PAGE = "{% set s = 'a' * 20000 %}"
MEMORY = {
    "text times": "{{ 'a' * 10**9 }}",
    "times text": "{{ 10**9 * 'a' }}",
    "list times": "{{ [0] * 10**9 }}",
    "append": forever("{{ ns.l.append(ns.s ~ i) }}"),
    "a list in itself": "{{ messages.append(messages) }}{{ messages|tojson }}{{ messages|string }}",
    "doubling by +": forever("{% set ns.s = ns.s + ns.s %}"),
    "doubling by ~": forever("{% set ns.s = ns.s ~ ns.s %}"),
    "doubling by set": forever("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
    "doubling by macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + forever("{% set ns.s = f(ns.s) %}"),
    "power": "{{ 2 ** (10 ** 8) }}",
    "squares": forever("{% set ns.n = ns.n * ns.n %}", "{% set ns = namespace(n=3) %}"),
    "round": "{{ 2.5|round(10**9, 'floor') }}",
    "int with a base": "{{ ('1' * 3000000)|int(0, 2) }}",
    "% width": "{{ '%1000000000d' % 1 }}",
    "% width by value": "{{ '%*d' % (10**9, 1) }}",
    "% precision": "{{ '%.1000000000f' % 1 }}",
    "% mapping": PAGE + "{{ ('%(a)s' * 20000) % {'a': s} }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "format width": "{{ '{:>1000000000}'.format(1) }}",
    "format width by value": "{{ '{:{}}'.format(1, 10**9) }}",
    "format many": PAGE + "{{ ('{0}' * 20000).format(s) }}",
    "format repr": NS + "{{ ('{0!r}' * 1000).format('\\x00' * 300000) }}",
    **{name: f"{{{{ 'a'.{name}(10**9) }}}}" for name in ("center", "ljust", "rjust", "zfill", "expandtabs")},
    "center filter": "{{ 'a'|center(10**9) }}",
    "indent": "{{ ('a\\n' * 4000)|indent(10**5) }}",
    "indent by text": "{{ ('a\\n' * 4000)|indent('x' * 100000) }}",
    "replace": PAGE + "{{ s.replace('a', s) }}",
    "replace nothing": PAGE + "{{ s.replace('', s) }}",
    "replace filter": PAGE + "{{ s|replace('a', s) }}",
    "join": PAGE + "{{ s.join('b' * 20000) }}",
    "join filter": PAGE + "{{ range(20000)|join(s) }}",
    "join attribute": NS + "{{ ([{'a': ns.s}] * 3000)|join(attribute='a') }}",
    "split": "{{ ('a ' * 1900000).split() }}",
    "splitlines": "{{ ('a\\r' * 1900000).splitlines() }}",
    "list of a text": "{{ ('ä' * 3900000)|list }}",
    "tojson indent": "{{ messages|tojson(indent=10**9) }}",
    "tojson deep": "{% set ns = namespace(x=range(50000)|list) %}{% for i in range(500) %}"
    "{% set ns.x = [ns.x] %}"
    "{% endfor %}{{ ns.x|tojson(indent=32) }}",
    "tojson separators": "{{ range(50000)|list|tojson(separators=['a' * 100000, 'b']) }}",
    "tojson escapes": "{{ ('\\x01' * 3900000)|tojson }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "sum": "{{ ([[1] * 1000] * 5000)|sum(start=[]) }}",
    "escape": "{{ ('<' * 3900000)|escape }}",
    "markup +": "{{ ''|safe + '<' * 3900000 }}",
    "output": forever("{{ 'a' * 1000 }}"),
    "plain output": forever("x" * 50000, ""),
    "plain output kept": "{% set x %}" + forever("x" * 50000, "") + "{% endset %}",
    "kept texts": forever("{% set ns.l = namespace(l=ns.l, x=ns.s.upper()) %}"),
    "kept slices": forever("{% set ns.l = namespace(l=ns.l, x=ns.s[i:]) %}"),
    "kept emoji": forever("{% set ns.l = namespace(l=ns.l, x='\U0001f600' * 900) %}"),
    "kept lists": forever("{% set ns.l = namespace(l=ns.l, x=[1, 2, 3, j]) %}"),
    "kept mappings": forever("{% set ns.l = namespace(l=ns.l, x={'a': i, 'b': j}) %}"),
    "kept namespaces": forever("{% set ns.l = namespace(l=ns.l) %}"),
    "kept methods": forever("{% set ns.l = {'a': ns.l}.get %}"),
    "kept undefined values": forever("{% set ns.l = {'a': ns.l}.nothing %}"),
    "message": "{{ raise_exception('a' * 3000000) }}",
    "date": "{{ strftime_now('%c' * 1000000) }}",
}
MEMORY |= {
    "% brackets in a key": "{{ ('%(a(b)c)200000000d' % {'a(b)c': 1})|length }}",
    "format width in another script": "{{ '{:>" + "\u0663" * 9 + "}'.format(1) }}",
    "keys as a set": "{% set s = {'a' * 3900000: 1}.keys() - [] %}{{ " + "~".join(["s"] * 50) + " }}",
    "title": "{{ ('\U0001f600 ' * 1900000)|title }}",
    "list of attributes": "{{ [1]|sort(attribute='ab,' * 1300000) }}",
    "name of an undefined value": "{{ {}['a' * 3000000].x }}",
    "name of a test": "{{ [1]|select('a' * 3000000)|list }}",
}
P = 2**61 - 1  # what Python's hashes of numbers are taken modulo of
COLLISIONS = {
    "dict": f"{{{{ dict(range(0, 44000 * {P}, {P})|batch(2)|list)|length }}}}",
    "dict of iterators": f"{{{{ dict(range(0, 44000 * {P}, {P})|batch(2))|length }}}}",
    "namespace": f"{{{{ namespace(range(0, 44000 * {P}, {P})|batch(2)|list) }}}}",
    "unique": f"{{{{ range(0, 60000 * {P}, {P})|unique|list|length }}}}",
    "unique by an attribute": f"{{{{ range(0, 30000 * {P}, {P})|batch(1)|unique(attribute=0)|list }}}}",
    "list less keys": f"{{{{ (range(0, 50000 * {P}, {P})|list - {{}}.keys())|length }}}}",
    "literal": "{{ {" + ", ".join(f"{n * P}: 1" for n in range(1900)) + "}|length }}",
}
DEEPER = {
    "tuples": "{% set ns.x = (ns.x,) %}",
    "lists": "{% set ns.x = [ns.x] %}",
    "mappings": "{% set ns.x = {1: ns.x} %}",
    "views": "{% set ns.x = {1: ns.x}.values() %}",
    "arguments": "{{ f(ns.x) }}",
    "rows": "{% set ns.x = [ns.x]|batch(1)|list %}",
    "groups": "{% set ns.x = [{'k': 1, 'x': ns.x}]|groupby('k') %}",
}


def nested(statement, times):
    return (
        "{% set ns = namespace(x=1) %}{% macro f() %}{% set ns.x = varargs %}{% endmacro %}"
        f"{{% for i in range({times}) %}}{statement}{{% endfor %}}{{{{ [ns.x]|length }}}}"
    )


SYNTAX = {
    "parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "lists": "{{ " + "[" * 50000 + " }}",
    "ifs": "{% if 1 %}" * 2500 + "{% endif %}" * 2500,
    "fors": "{% for i in [1] %}" * 60 + "{% endfor %}" * 60,
    "attributes": "{{ a" + ".b" * 30000 + " }}",
    "sums": "{{ 1" + "+1" * 30000 + " }}",
    "nots": "{{ " + "not " * 15000 + "1 }}",
    "outputs": "{{a}}" * 13000,
    "macros": "{% macro f() %}{% endmacro %}" * 2000,
    "elifs": "{% if a %}" + "{% elif a %}" * 5000 + "{% endif %}",
    "braces": "{" * 60000,
    "comment": "{#" * 30000,
    "long": "x" * 300000,
    "number": "{{ " + "9" * 60000 + " }}",
    "comparisons": "{{ a" + "<a" * 30000 + " }}",
}


# Small ones keep the tests short: the mechanism is the same whatever they are.
HURRIED = TemplateLimits(seconds=0.05, memory=128 << 20)


def attack(source, limits=HURRIED, fails=True):
    """Return the error's text, "" for a template that renders."""
    messages = copy.deepcopy(MESSAGES)
    failure = ""
    try:
        text = ChatTemplate(source, limits=limits).render(messages)
        assert len(text) <= limits.output + 10_000
    except TemplateError as error:
        failure = str(error)
    assert messages == MESSAGES
    assert failure or not fails
    assert len(failure) < 3000
    return failure


def cases(bombs):
    return [pytest.param(source, id=name) for name, source in bombs.items()]


@pytest.mark.parametrize("source", cases(REACH))
def test_reaching_out(source):
    assert "ended" not in attack(source)  # refused by name, before any limit


@pytest.mark.parametrize("source", cases(MUTATION))
def test_changing_the_caller_s_data(source):
    assert "line 1" in attack(source)


def test_a_list_grows_in_the_copy_of_a_template():
    source = "{% set _ = messages.append(messages[0]) %}{{ messages.pop(0).content }}{{ messages|length }}"
    template = ChatTemplate(source)
    for _ in range(2):  # nothing stays in the process
        messages = copy.deepcopy(MESSAGES)
        assert (template.render(messages), messages) == ("hi2", MESSAGES)


@pytest.mark.parametrize("source", cases(TIME))
def test_time_bombs(source):
    attack(source)


@pytest.mark.parametrize("source", cases(MEMORY))
def test_memory_bombs(source):
    attack(source, fails=False)


@pytest.mark.parametrize("source", cases(SYNTAX))
def test_syntax_bombs(source):
    attack(source, fails=False)


@pytest.mark.parametrize("source", cases(COLLISIONS))
def test_keys_that_meet_in_one_place(source):
    attack(source)


@pytest.mark.parametrize("source", [nested(one, 40_000) for one in DEEPER.values()], ids=list(DEEPER))
def test_values_nested_deeply(source):
    """Hashing tuples and letting go of what holds what takes the C stack."""
    attack(source, fails=False)


def test_limits_are_the_callers():
    endless = forever("", "")
    assert "takes longer than 0.07 s" in attack(endless, TemplateLimits(seconds=0.07, seconds_per_byte=0))
    assert "too much memory" in attack("{{ 'a' * 10**8 }}", TemplateLimits(memory=100_000_000))
    small = TemplateLimits(output=500, output_per_byte=0)
    assert "writes more than 500 bytes" in attack("{{ 'a' * 501 }}", small)
    assert attack("{{ 'a' * 500 }}", small, fails=False) == ""


def test_an_error_names_the_template_whose_process_ended():
    with pytest.raises(TemplateError, match=r"^chat template 'special': the template takes longer"):
        ChatTemplate(forever("", ""), name="special", limits=HURRIED).render(MESSAGES)
    assert ChatTemplate("{{ messages[0].content }}").render(MESSAGES) == "hi"


CONFINED = """
import os, socket
from graphml.system import kept_program
from graphml.text import template_renderer
kept_program.confine()
for name, action in [
    ("read", lambda: open("/etc/passwd")),
    ("write", lambda: open("written", "w")),
    ("socket", lambda: socket.socket()),
    ("program", lambda: os.posix_spawn("/bin/true", ["true"], {}) if os.getuid() else open("/bin/true")),
    ("pipe", os.pipe),
]:
    try:
        action()
    except OSError:
        continue
    print(name)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limits")
def test_who_gets_out_of_the_sandbox_finds_no_files_sockets_or_processes(tmp_path):
    command, environment = settings.python_child("-c", CONFINED)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
