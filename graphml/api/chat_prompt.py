"""The prompt of a conversation: messages, tools and settings become text, ids, grammar and a reader.

Chats and servers use it alike. Knows templates, formats of answers and a tokenizer; nothing of sessions,
engines or HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

from graphml.api.answer_reader import AnswerReader, shown_tokens
from graphml.api.call_forms import FORMS, forms_of
from graphml.api.call_grammar import CallGrammar, behind_reasoning, ending_reasoning
from graphml.api.template_messages import (
    fenced_messages,
    fenced_tool,
    fenced_value,
    for_template,
    later_systems,
    reads_reasoning,
    reasoning_apart,
    system_texts,
    tool_variables,
)
from graphml.api.tools import Tool, tools_of
from graphml.api.tools_in_messages import with_tools_described, written_calls
from graphml.errors import TemplateError, UsageError
from graphml.options.argument_checks import mapping_of
from graphml.sampling import SamplingParams
from graphml.sampling.schemas.schema_members import schema_of_members
from graphml.text.answers import AnswerFormat, AnswerParser, ReasoningMarks, format_of, formats, marks_of
from graphml.text.answers.call_syntax import JSON
from graphml.text.answers.formats import format_of_tokens
from graphml.text.chat_template import DEFAULT_NAME, ChatTemplate, OverLimitsError, check_nesting
from graphml.text.fenced_text import encode_fenced, fenced, restored, without_fences
from graphml.text.messages import Message, checked_messages
from graphml.text.tokenizer import Tokenizer

TOOL_USE: Final = "tool_use"
REASONING_FORMATS: Final = ("auto", "none", "deepseek")
AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True)
class ChatPrompt:
    """What a model is given for an answer, and how the answer is read.

    fenced: the text, with fences around what is no control token though it spells one. calls: what they
    follow, None where there are none; params: the settings, with it.
    begun: how the answer begins, where a message of the assistant is continued; it is in the text and not in
    what the reader reads. continues: whether one is. follows: whether a grammar makes calls whole.
    used_ids: of the conversation's calls.
    """

    fenced: str
    format: AnswerFormat
    marks: ReasoningMarks | None
    inside: bool
    tools: tuple[Tool, ...]
    split: bool
    continues: bool
    begun: str
    calls: CallGrammar | None
    tokenizer: Tokenizer = field(repr=False)
    params: SamplingParams = SamplingParams()  # noqa: RUF009 - a frozen value
    follows: bool = False
    used_ids: tuple[str, ...] = ()

    def sampled(self, params: SamplingParams) -> ChatPrompt:
        """The same with these settings; UsageError where the answer is to follow another grammar, too."""
        params = ending_reasoning(params, self.format, self.marks, self.inside, self.tokenizer)
        followed = params if self.calls is None else self.calls.sampled(params)
        if followed is not params:
            return dataclasses.replace(self, params=followed, follows=True)
        done = self.marks is not None and self.fenced.rstrip().endswith(self.marks.close)  # with no reasoning
        marks = None if done else self.marks
        begun = behind_reasoning(params, self.format, marks, self.inside, self.tokenizer)
        return dataclasses.replace(self, params=begun)

    @property
    def unforced(self) -> list[str]:
        """What of the tools' schemas no grammar forces, though calls follow one."""
        return self.calls.unforced(self.params) if self.calls is not None and self.follows else []

    @property
    def text(self) -> str:
        """The prompt as a text."""
        return without_fences(self.fenced)

    @property
    def ids(self) -> list[int]:
        """The prompt's ids, from the begin of a sequence on."""
        return encode_fenced(self.tokenizer, self.fenced, begins=True)

    @property
    def shown(self) -> frozenset[int]:
        """The control tokens whose text the reader needs."""
        return shown_tokens(self.tokenizer, self.format if self.tools else formats()["plain"], self.marks) | (
            shown_tokens(self.tokenizer, self.format, None)
            if self.format.whole or self.format.frame
            else frozenset()
        )

    def reader(self) -> AnswerReader:
        """A reader of one answer; each of several answers needs its own."""
        tools = {tool.name: tool.parameters for tool in self.tools}
        if self.format.syntax is not None and self.format.syntax.arguments is not JSON:
            tools = {name: schema_of_members(schema) for name, schema in tools.items()}
        parser = AnswerParser(
            self.format,
            tools,
            self.marks,
            self.inside,
            self.split,
            holds=not self.follows,
            used_ids=self.used_ids,
        )
        return AnswerReader(parser, self.tokenizer, self.shown, self.params.stop, self.params.stop_tokens)


@dataclass(frozen=True)
class ChatSettings:
    """How conversations become prompts.

    variables: further variables of the template; where add_generation_prompt is False, no answer begins.
    tool_choice: "auto", "none", "required", a tool's name, or OpenAI's form of it. parallel_tool_calls:
    whether an answer may have several, never of one that is named; None: but for calls that are required of
    a template that does not show several, as in llama.cpp. reasoning_format: "none"
    leaves reasoning in the text with its marks; "deepseek" and "auto" tell it apart. chat_format: the name
    of the format of answers, None: as the template's text says.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: Any = AUTO
    parallel_tool_calls: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    reasoning_format: str = AUTO
    chat_format: str | None = None

    def __post_init__(self) -> None:
        variables = mapping_of("variables", self.variables, "a mapping from names to values")
        check_nesting("variables", dict(variables))
        object.__setattr__(self, "variables", dict(variables))
        if self.reasoning_format not in REASONING_FORMATS:
            wanted = ", ".join(REASONING_FORMATS)
            raise UsageError(f"reasoning_format: wanted one of {wanted}; got {self.reasoning_format!r:.80}")
        format_of("", self.chat_format)  # a wrong name is told at once
        named = chosen_name(self.tool_choice)
        if named is not None and named not in [tool.name for tool in self.tools]:
            known = ", ".join(tool.name for tool in self.tools) or "none"
            raise UsageError(f"tool_choice: wanted auto, none, required or one of {known}; got {named!r:.80}")
        if self.tool_choice == REQUIRED and not self.tools:
            raise UsageError("tool_choice: required wants tools, there are none")


def chosen_name(choice: Any) -> str | None:
    """The tool that is chosen by name; None for auto, none and required. UsageError for all else."""
    if isinstance(choice, str):
        return None if choice in (AUTO, NONE, REQUIRED) else choice
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise UsageError(f"tool_choice: wanted auto, none, required or a tool's name; got {choice!r:.80}")
    return name


def chat_prompt(
    tokenizer: Tokenizer,
    templates: Mapping[str, ChatTemplate],
    messages: object,
    params: SamplingParams | None = None,
    *,
    tools: object = None,
    tool_choice: Any = AUTO,
    parallel_tool_calls: bool | None = None,
    variables: Mapping[str, Any] | None = None,
    reasoning_format: str = AUTO,
    chat_format: str | None = None,
) -> ChatPrompt:
    """The prompt for the answer to these messages, OpenAI's form; a last one of the assistant is continued.

    templates: by name, as `Model.templates`. Other arguments as of `ChatSettings`; tools: functions or
    descriptions. Raises UsageError for what is wrong in them, TemplateError where the template fails.
    """
    settings = ChatSettings(
        tools_of(tools), tool_choice, parallel_tool_calls, variables or {}, reasoning_format, chat_format
    )
    checked = checked_messages(messages)
    return prompt_of(tokenizer, templates, checked, settings).sampled(params or SamplingParams())


def prompt_of(
    tokenizer: Tokenizer,
    templates: Mapping[str, ChatTemplate],
    messages: Sequence[Message],
    settings: ChatSettings,
) -> ChatPrompt:
    """The same of messages and settings that were checked."""
    tools = settings.tools if settings.tool_choice != NONE else ()
    template = templates[TOOL_USE if tools and TOOL_USE in templates else DEFAULT_NAME]
    format = format_of(template.source, settings.chat_format)
    named = chosen_name(settings.tool_choice)
    forced = tools if settings.tool_choice not in (AUTO, NONE) else ()
    forced = tuple(tool for tool in forced if named in (None, tool.name))
    knows = format.name != "plain" and bool({"tools", "functions"} & template.variables)
    knows = knows and format.name != "generic" and not (forced and format.syntax is None)
    called = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    # By this program, in messages, as the template does not.
    described = not knows and bool(tools or (called and "tool_calls" not in template.source))
    if described and settings.chat_format is None:
        format = format_of_tokens(partial(_is_token, tokenizer))
    elif described and format.syntax is None:
        format = formats()["generic"]
    several = settings.parallel_tool_calls
    if several is None:
        several = not forced or (not described and _shows_several(template))
    several = several and named is None  # a named one is called once
    last = messages[-1] if messages else None
    begins = settings.variables.get("add_generation_prompt", True)
    continues = begins and last and last["role"] == "assistant" and not last.get("tool_calls")
    marks = marks_of(template.source, format)
    continued = reasoning_apart(last, marks) if continues and last else None
    said = list(messages[:-1] if continued else messages)
    if reads_reasoning(template.source):
        said = [reasoning_apart(message, marks) for message in said]
    fence = partial(fenced, tokenizer)
    said = fenced_messages(said, fence)
    offered = [fenced_tool(tool, fence) for tool in tools]
    if described and format.syntax is not None:
        only = [tool for tool, own in zip(offered, tools, strict=True) if own in forced] or offered
        said = with_tools_described(said, only, format.syntax, bool(forced), tokenizer.spelled_controls)
    text = _rendered(template, format, said, settings, () if described else offered, fence)
    inside = marks is not None and text.rstrip().endswith(marks.open)
    if continued is not None:
        begun = [fence(continued.get(key, "")) for key in ("reasoning_content", "content")]
        own = continued is not last  # it has marks itself
        text, inside = _begun(text, begun[0], begun[1], marks, inside, format, own)
    calls = None
    if forced or (tools and format.syntax is not None):
        calls = CallGrammar(format, forced or tools, bool(forced), several, marks, inside, tokenizer)
    return ChatPrompt(
        text, format, marks, inside, tools, settings.reasoning_format != NONE, continued is not None,
        continued["content"] if continued else "", calls, tokenizer, used_ids=_ids(messages),
    )  # fmt: skip


def _rendered(
    template: ChatTemplate,
    format: AnswerFormat,
    messages: list[Message],
    settings: ChatSettings,
    shown: Sequence[Tool],
    fence: Callable[[str], str],
) -> str:
    """The text of the template, in the first form of the messages that it takes."""
    asked = {"add_generation_prompt": True, **fenced_value(settings.variables, fence)}

    def render(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        variables = {**tool_variables(template.variables, tools, template.now()), **asked}
        offered = [tool.as_openai() for tool in tools] or None
        return restored(template.render(messages, tools=offered, **variables))

    def write(message: Message) -> str | None:
        return None if format.syntax is None else written_calls(message, format.syntax, shown)

    called = any(message.get("tool_calls") for message in messages)
    forms = forms_of(template.source, render, write) if called else FORMS
    # Many templates leave out, without an error, what systems say behind other messages.
    wanted = [text.strip() for text in system_texts(messages)] if later_systems(messages) else []
    failure: TemplateError | None = None
    without: str | None = None
    role = not wanted or _has_system_role(render)
    for formed in for_template(messages, template.source, forms, write, role):
        try:
            rendered = render(formed, shown)
        except OverLimitsError:
            raise
        except TemplateError as error:
            failure = failure or error
            continue
        if all(text in rendered for text in wanted):
            return rendered
        without = rendered if without is None else without
    if without is not None:
        return without
    assert failure is not None
    raise failure


@lru_cache(maxsize=16)
def _shows_several(template: ChatTemplate) -> bool:
    """Whether a template writes the second call of an answer; some refuse it, others leave it out."""
    names = ("first_called", "second_called")
    forms: tuple[dict[str, Any] | str, ...] = ({}, "{}")
    for arguments in forms:
        calls = [
            {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name in enumerate(names)
        ]
        asked: list[Message] = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": "", "tool_calls": calls},
        ]
        with suppress(TemplateError):
            return names[1] in template.render(asked, add_generation_prompt=False)
    return False


def _has_system_role(render: Callable[[Sequence[Message], Sequence[Tool]], str]) -> bool:
    """Whether a template takes a first system message; some write later ones as turns of an unknown role."""
    try:
        render([{"role": "system", "content": "."}, {"role": "user", "content": "."}], ())
    except TemplateError:
        return False
    return True


def _begun(
    text: str,
    reasoning: str,
    content: str,
    marks: ReasoningMarks | None,
    inside: bool,
    format: AnswerFormat,
    own: bool,
) -> tuple[str, bool]:
    """The prompt with the begin of an answer, and whether that is within its reasoning.

    own: the answer began with marks of reasoning, though nothing may be between them.
    """
    if format.whole is not None:
        if reasoning and format.reasoning is not None:
            text += format.reasoning.open + reasoning
            text += format.reasoning.close + format.resumes if content else ""
        return text + (format.text_open + content if content else ""), False
    if marks is not None and (reasoning or own or (inside and content)):
        text += ("" if inside else marks.open + "\n") + reasoning
        if not content:
            return text, True
        return f"{text}\n{marks.close}\n\n{content}", False
    return text + content, inside


def _ids(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(call["id"] for message in messages for call in message.get("tool_calls", ()) if call["id"])


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_special=False, parse_special=True)) == 1
