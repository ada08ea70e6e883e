"""Answers as models of each family write them, with what they say. Calls are of the tools in TOOLS."""

# ruff: noqa: E501 - answers stand as models write them

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "python": {"type": "object", "properties": {"code": {"type": "string"}}},
}
ROME = ("weather", {"city": "Rome", "days": 3})
SUM = ("add", {"a": 1, "b": 2.5})


@dataclass(frozen=True)
class Sample:
    """An answer in a format. inside: the prompt ended in the reasoning; calls: names and arguments."""

    format: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    inside: bool = False
    think: tuple[str, str] | None = None


THINK = ("<think>", "</think>")
ROME_JSON, SUM_JSON = '{"city": "Rome", "days": 3}', '{"a": 1, "b": 2.5}'
V31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>" + ROME_JSON
FENCED = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
DSML = "｜DSML｜"
S, M = ":opensource", "]<]minimax[>["
SAMPLES = (
    Sample("plain", "just <tool_call> text \n", "just <tool_call> text \n"),
    Sample("plain", "<think>\nhm\n</think>\n\nYes. ", "Yes. ", "hm", think=THINK),
    Sample("plain", "hm\n</think>\n\nYes", "Yes", "hm", inside=True, think=THINK),
    Sample("plain", "never done", "", "never done", inside=True, think=THINK),
    Sample("plain", "[THINK]a[/THINK]b", "b", "a", think=("[THINK]", "[/THINK]")),
    Sample("plain", "no <think>, no</think>", "no <think>, no</think>", think=THINK),
    Sample(
        "hermes",
        '<think>so</think>\nI look.\n<tool_call>\n{"name": "weather", "arguments": ' + ROME_JSON
        + '}\n</tool_call>\n<tool_call>{"arguments": ' + SUM_JSON + ', "name": "add"}</tool_call>',
        "I look.", "so", (ROME, SUM), think=THINK,
    ),
    Sample(
        "hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2.5}"}', "", "", (SUM,)
    ),
    Sample(
        "hermes", '<tool_call>{"name":"weather","arguments":{"city":"a\nb \\"c\\" {[</tool_call>"}}</tool_call>',
        "", "", (("weather", {"city": 'a\nb "c" {[</tool_call>'}),),
    ),
    Sample(
        "qwen3-coder",
        "Look\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
        "<parameter=b>\n2.5\n</parameter>\n</function>\n</tool_call>",
        "Look", "", (ROME, SUM),
    ),
    Sample(
        "qwen3-coder",
        "<function=python>\n<parameter=code>\nif a < 2:\n\tprint('</x>')\n\n</parameter>\n</function>",
        "", "", (("python", {"code": "if a < 2:\n\tprint('</x>')\n"}),),
    ),
    Sample(
        "seed",
        "<seed:think>so</seed:think>\n<seed:tool_call>\n<function=weather>\n<parameter=city>Rome</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>", "", "so", (ROME,),
    ),
    Sample(
        "glm",
        "<think></think>\nok\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>"
        "days</arg_key>\n<arg_value>3</arg_value>\n</tool_call><tool_call>add\n</tool_call>",
        "ok", "", (ROME, ("add", {})), think=THINK,
    ),
    Sample("llama3", '{"name": "weather", "parameters": ' + ROME_JSON + "}", "", "", (ROME,)),
    Sample(
        "llama3", '{"type": "function", "name": "weather", "parameters": ' + ROME_JSON + '};\n{"name": "add", '
        '"parameters": ' + SUM_JSON + "}", "", "", (ROME, SUM),
    ),
    Sample("llama3", '<|python_tag|>weather.call(city="Rome", days=3)', "", "", (ROME,)),
    Sample("llama3", "<|python_tag|>print(1)\n", "", "", (("python", {"code": "print(1)\n"}),)),
    Sample("llama3", '{"answer": 42}', '{"answer": 42}'),
    Sample("llama3", '{"name": "unknown", "parameters": {}} ', '{"name": "unknown", "parameters": {}} '),
    Sample(
        "mistral-array", '[TOOL_CALLS][{"name": "weather", "arguments": ' + ROME_JSON + ', "id": "abcdefghi"}, '
        '{"name": "add", "arguments": ' + SUM_JSON + "}]", "", "", (ROME, SUM),
    ),
    Sample(
        "mistral", f"[THINK]so[/THINK]See:[TOOL_CALLS]weather[ARGS]{ROME_JSON}[TOOL_CALLS]add[CALL_ID]x1[ARGS]"
        + SUM_JSON, "See:", "so", (ROME, SUM),
    ),
    Sample(
        "deepseek",
        "so</think>\n\nSee<｜tool▁calls▁begin｜>" + FENCED.format("weather", ROME_JSON) + "\n"
        + FENCED.format("add", SUM_JSON) + "<｜tool▁calls▁end｜>",
        "See", "so", (ROME, SUM), inside=True, think=THINK,
    ),
    Sample(
        "deepseek-v3.1", V31 + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>" + SUM_JSON
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", "", (ROME, SUM),
    ),
    Sample(
        "deepseek-v3.2",
        f'ok\n\n<{DSML}function_calls>\n<{DSML}invoke name="weather">\n<{DSML}parameter name="city" string="true">'
        f'Rome</{DSML}parameter>\n<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n'
        f"</{DSML}invoke>\n</{DSML}function_calls>", "ok", "", (ROME,),
    ),
    Sample(
        "deepseek-v4",
        f'so</think>ok\n\n<{DSML}tool_calls>\n<{DSML}invoke name="weather">\n<{DSML}parameter name="city" '
        f'string="true">Rome</{DSML}parameter>\n<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n'
        f'</{DSML}invoke>\n<{DSML}invoke name="add">\n\n</{DSML}invoke>\n</{DSML}tool_calls>',
        "ok", "so", (ROME, ("add", {})), inside=True, think=THINK,
    ),
    Sample(
        "apertus", '<|inner_prefix|>so<|inner_suffix|>ok<|tools_prefix|>[{"weather": ' + ROME_JSON + '}, {"add": '
        + SUM_JSON + "}]<|tools_suffix|>", "ok", "so", (ROME, SUM),
    ),
    Sample(
        "gigachat3", 'ok<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": '
        + ROME_JSON + "}", "ok", "", (ROME,),
    ),
    Sample("gigachat3.1", 'ok<|function_call|>{"name": "add", "arguments": ' + SUM_JSON + "}", "ok", "", (SUM,)),
    Sample(
        "minicpm5", '<think>\nso\n</think>\n\nok<function name="weather"><param name="city">Rome</param><param '
        'name="days">3</param></function><function name="python"><param name="code"><![CDATA[if a < b:\n'
        '    print("</param>")]]></param></function>', "ok", "so",
        (ROME, ("python", {"code": 'if a < b:\n    print("</param>")'})), think=THINK,
    ),
    Sample("minicpm5", '<function name="add"></function>', "", "", (("add", {}),)),
    Sample(
        "muse-glimmer", " to=self<|message|>so<|eom|><|start|>assistant to=user<|message|>ok<|eom|><|start|>assistant "
        'to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Rome'
        '</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        "<|eom|><|start|>assistant to=add<|message|><atem:function_calls>\n<atem:invoke name=\"add\">\n"
        '<atem:parameter name="a">1</atem:parameter>\n<atem:parameter name="b">2.5</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>", "ok", "so", (ROME, SUM),
    ),
    Sample("muse-glimmer", "<|message|>Hello.<|eot|>", "Hello."),
    Sample(
        "functionary-v3.2", "all\nok >>> print(1)>>>weather\n" + ROME_JSON + ">>>add\n" + SUM_JSON,
        "ok >>> print(1)", "", (ROME, SUM),
    ),
    Sample("functionary-v3.2", "weather\n" + ROME_JSON, "", "", (ROME,)),
    Sample("functionary-v3.2", "all\nallowed", "allowed"),
    Sample(
        "minimax",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n<parameter '
        'name="days">3</parameter>\n</invoke>\n<invoke name="add">\n</invoke>\n</minimax:tool_call>',
        "", "", (ROME, ("add", {})),
    ),
    Sample(
        "kimi",
        "ok<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        + ROME_JSON + "<|tool_call_end|><|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>" + SUM_JSON
        + "<|tool_call_end|><|tool_calls_section_end|>", "ok", "", (ROME, SUM),
    ),
    Sample(
        "command-r", 'I will.\nAction:\n```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": '
        + ROME_JSON + "\n    }\n]```\n", "I will.", "", (ROME,),
    ),
    Sample(
        "command-r7b", '<|START_THINKING|>so<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
        '"tool_name": "weather", "parameters": ' + ROME_JSON + "}\n]<|END_ACTION|>", "", "so", (ROME,),
    ),
    Sample("apriel", '<tool_calls>[{"name": "weather", "arguments": ' + ROME_JSON + '}, {"name": "add", "arguments": ' + SUM_JSON + "}]</tool_calls>", "", "", (ROME, SUM)),
    Sample("granite", '<|tool_call|>[{"name": "weather", "arguments": ' + ROME_JSON + "}]", "", "", (ROME,)),
    Sample(
        "phi4", '<|tool_call|>[{"type": "function", "function": {"name": "weather", "arguments": ' + ROME_JSON
        + "}}]<|/tool_call|>", "", "", (ROME,),
    ),
    Sample("phi4", 'functools[{"name": "add", "arguments": ' + SUM_JSON + "}]", "", "", (SUM,)),
    Sample("functionary", f"<function=weather>{ROME_JSON}</function>", "", "", (ROME,)),
    Sample("functionary", "<|python_tag|>1 + 1", "", "", (("python", {"code": "1 + 1"}),)),
    Sample(
        "nemotron", '<TOOLCALL>[{"name": "weather", "arguments": ' + ROME_JSON + "}]</TOOLCALL>", "", "", (ROME,)
    ),
    Sample(
        "lfm2", '<|tool_call_start|>[weather(city="Rome", days=3), add(a=1, b=2.5)]<|tool_call_end|>done',
        "done", "", (ROME, SUM),
    ),
    Sample(
        "gemma4", '<|channel>thought\nso\n<channel|>ok<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:add{a:1,b:2.5}<tool_call|>", "ok", "so", (ROME, SUM),
    ),
    Sample(
        "gemma4", '<|tool_call>call:python{code:<|"|>a, {b}: "c"<|"|>}<tool_call|>',
        "", "", (("python", {"code": 'a, {b}: "c"'}),),
    ),
    Sample(
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Rome<escape>,days:3}<end_function_call>", "", "", (ROME,),
    ),
    Sample(
        "harmony",
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ROME_JSON,
        "I look.", "so", (ROME,),
    ),
    Sample("harmony", " to=functions.add<|channel|>commentary json<|message|>" + SUM_JSON, "", "", (SUM,)),
    Sample(
        "harmony", "<|channel|>analysis<|message|>a <b><|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Yes.", "a <b>",
    ),
    Sample("generic", '{"name": "weather", "arguments": ' + ROME_JSON + "}", "", "", (ROME,)),
    Sample(
        "generic", '[{"name": "weather", "arguments": ' + ROME_JSON + '}, {"name": "add", "arguments": '
        + SUM_JSON + "}]", "", "", (ROME, SUM),
    ),
    Sample("generic", '{"name": "Rome", "size": 3}', '{"name": "Rome", "size": 3}'),
    Sample("generic", "no JSON {", "no JSON {"),
    Sample(
        "minimax-m3",
        f'<mm:think>so</mm:think>ok{M}<tool_call>\n{M}<invoke name="weather">{M}<city>Rome{M}</city>{M}<days>3{M}</days>'
        f'{M}</invoke>\n{M}<invoke name="add">{M}</invoke>\n{M}</tool_call>', "ok", "so", (ROME, ("add", {})),
    ),
    Sample(
        "hy3",
        f"<think{S}>so</think{S}>ok<tool_calls{S}>\n<tool_call{S}>weather<tool_sep{S}>\n<arg_key{S}>city</arg_key{S}>\n"
        f"<arg_value{S}>Rome</arg_value{S}>\n<arg_key{S}>days</arg_key{S}>\n<arg_value{S}>3</arg_value{S}>\n"
        f"</tool_call{S}>\n<tool_call{S}>add<tool_sep{S}>\n</tool_call{S}>\n</tool_calls{S}>",
        "ok", "so", (ROME, ("add", {})),
    ),
    Sample(
        "solar", "<|think|>so<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather"
        "<|tool_call:args|>" + ROME_JSON + "<|tool_call:end|><|tool_call:begin|>a1b2c3d4e6<|tool_call:name|>add"
        "<|tool_call:args|>" + SUM_JSON + "<|tool_call:end|>", "", "so", (ROME, SUM),
    ),
    Sample("solar", "<|think|>so<|end|><|begin|>assistant<|content|>Yes.<|end|>", "Yes.", "so"),
    Sample(
        "kimi-k3",
        "<|open|>think<|sep|>so<|close|>think<|sep|><|open|>response<|sep|>ok<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument'
        '<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|open|>call '
        'tool="add" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>', "ok", "so", (ROME, ("add", {})),
    ),
    Sample(
        "apriel", "I think.\n[BEGIN FINAL RESPONSE]\nYes.", "Yes.", "I think.", inside=True,
        think=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
)  # fmt: skip

MALFORMED = (
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Ro'),
    ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nRome"),
    ("llama3", '{"name": "weather", "parameters": {"city": "Rome"'),
    ("mistral", "[TOOL_CALLS]weather[ARGS]{"),
    ("hermes", "a <tool_call>{not json}</tool_call> b"),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": Rome}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>" + '{"name":"weather","arguments":' + '{"a":' * 50 + "</tool_call>"),
    (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>a</parameter><parameter=city>b</parameter>",
    ),
    ("glm", "<tool_call>weather\n<arg_key>city</arg_key>Rome</tool_call>"),
    ("mistral-array", '[TOOL_CALLS][{"name": "weather"'),
    ("deepseek-v3.1", V31 + "and so on"),
    ("kimi", "<|tool_calls_section_begin|>x"),
    ("command-r", 'Action:\n```json\n["a"]```'),
    ("granite", "<|tool_call|>{}"),
    ("gemma4", "<|tool_call>call:weather{city:Rome}<tool_call|>"),
    ("lfm2", "<|tool_call_start|>[weather(open('x'))]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[weather(city=open('x'))]<|tool_call_end|>"),
    ("functionary", "<function=weather>x</function>"),
    ("harmony", "<|channel|>commentary to=functions.nobody<|message|>{}"),
    ("harmony", "<|channel|>analysis and nothing"),
    ("generic", '{"name": "nobody", "arguments": {}}'),
)
"""Texts in which nothing is a call, if the model ended them so."""

CUT = (  # a text in which the answer ended, the tool, its arguments as far as they came, and those that are whole
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Ro', '{"city": "Ro', {}),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Rome", "days": 1', '{"city": "Rome", "days": 1', {"city": "Rome"}),
    ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nRome", '{"city": "Rome', {}),
    ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<par", '{"city": "Rome"', {"city": "Rome"}),
    ("glm", "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Ro", '{"city": "Ro', {}),
    ("minimax", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Ro', '{"city": "Ro', {}),
    ("llama3", '{"name": "weather", "parameters": {"city": "Rome"', '{"city": "Rome"', {"city": "Rome"}),
    ("mistral", "[TOOL_CALLS]weather[ARGS]{", "{", {}),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{", "{", {}),
    ("lfm2", '<|tool_call_start|>[weather(city="Rome", days=', '{"city": "Rome"', {"city": "Rome"}),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Rome<|"|>,da', '{"city": "Rome"', {"city": "Rome"}),
    ("harmony", '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "R', '{"city": "R', {}),
)  # fmt: skip
CUT_BEFORE_THE_NAME = (
    ("hermes", "<tool_call>\n"), ("hermes", '<tool_call>{"name": "wea'), ("qwen3-coder", "<tool_call>\n<function=wea"),
    ("mistral", "[TOOL_CALLS]"), ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.wea"),
    ("lfm2", "<|tool_call_start|>[wea"), ("gemma4", "<|tool_call>call:wea"), ("mistral-array", '[TOOL_CALLS][{"name": "weather"'),
)  # fmt: skip
"""Texts in which an answer was cut before it is known what is called."""
