"""What a model answers, told apart as it streams: reasoning, text and tool calls."""

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.answer_parser import AnswerParser
from graphml.text.answers.events import (
    Answer,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCall,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)
from graphml.text.answers.formats import format_of, formats, marks_of
