"""Structured answers of servers beside their plain ones: how many are right, in how many tokens and seconds.

    python benchmarks/structured_answers.py right NAME=URL... [--questions 200]
    python benchmarks/structured_answers.py tools NAME=URL...
    python benchmarks/structured_answers.py speed NAME=URL... [--rounds 5] [--clients 1 8]

`right`: questions with known answers (`known_facts.py`) at temperature 0, in plain text until so many are
found that every server answers; then these by a JSON schema, by a forced call and by a grammar of four
answers. `tools`: requests that want one of six tools (`tool_tasks.py`) and questions that want none, all
with these tools: how many are called, and called rightly. `speed`: answers of mostly keys, the servers in
turns; tokens and milliseconds an answer, medians and spread of the rounds. Servers of OpenAI's protocol:
`graphml serve`, `llama-server`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median
from typing import Any

import httpx2
from known_facts import Fact, facts
from tool_tasks import TOOLS, Task, tasks

ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 60}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL = {"name": "answer", "description": "Gives the answer to the question.", "parameters": ANSWER}
KEYS = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "last_name": {"type": "string", "maxLength": 12},
        "email_verified": {"type": "boolean"},
        "shipping_address_country": {"enum": ["Germany", "France", "Switzerland"]},
        "newsletter_subscription": {"type": "boolean"},
        "preferred_payment_method": {"enum": ["credit_card", "bank_transfer", "invoice"]},
    },
    "required": [
        "first_name", "last_name", "email_verified", "shipping_address_country", "newsletter_subscription",
        "preferred_payment_method",
    ],
    "additionalProperties": False,
}  # fmt: skip
ORDER = (
    "Anna Keller from Zurich has confirmed her address and wants to pay by card. Her customer record as JSON:"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    right = commands.add_parser("right")
    right.add_argument("servers", nargs="+", metavar="NAME=URL")
    right.add_argument("--questions", type=int, default=200)
    right.add_argument("--show", action="store_true", help="print each answer that is wrong")
    tools = commands.add_parser("tools")
    tools.add_argument("servers", nargs="+", metavar="NAME=URL")
    tools.add_argument("--questions", type=int, default=100)
    speed = commands.add_parser("speed")
    speed.add_argument("servers", nargs="+", metavar="NAME=URL")
    speed.add_argument("--rounds", type=int, default=5)
    speed.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    given = parser.parse_args()
    servers = {name: Server(url) for name, _, url in (one.partition("=") for one in given.servers)}
    {"right": count_right, "tools": count_calls, "speed": time_answers}[given.command](servers, given)


class Server:
    """One server. Each way to ask returns the answer's text and its number of tokens."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, timeout=300, limits=httpx2.Limits(max_connections=64))

    def asked(self, question: str, **more: Any) -> tuple[dict[str, Any], int]:
        body = {
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 60,
            "cache_prompt": False,
            **more,
        }
        answer = self._http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        found = answer.json()
        return found["choices"][0]["message"], found["usage"]["completion_tokens"]

    def plain(self, question: str) -> tuple[str, int]:
        message, n = self.asked(question)
        return message["content"], n

    def by_schema(self, question: str) -> tuple[str, int]:
        message, n = self.asked(f"{question} Answer as JSON.", response_format=_form(ANSWER))
        return _value(message["content"]), n

    def by_choice(self, question: str, choices: list[str]) -> tuple[str, int]:
        grammar = "root ::= " + " | ".join(json.dumps(one) for one in choices)
        message, n = self.asked(question, grammar=grammar)
        return message["content"], n

    def by_call(self, question: str) -> tuple[str, int]:
        message, n = self.asked(
            question,
            tools=[{"type": "function", "function": TOOL}],
            tool_choice={"type": "function", "function": {"name": "answer"}},
        )
        calls = message.get("tool_calls") or [{"function": {"arguments": ""}}]
        return _value(calls[0]["function"]["arguments"]), n

    def with_tools(self, request: str, **more: Any) -> tuple[str, str, str]:
        """The name and the arguments of the first call, and the text of the answer."""
        message, _ = self.asked(request, tools=TOOLS, **more)
        call = (message.get("tool_calls") or [{"function": {"name": "", "arguments": ""}}])[0]["function"]
        return call["name"], call["arguments"], message.get("content") or ""

    def keys(self) -> tuple[str, int]:
        message, n = self.asked(ORDER, response_format=_form(KEYS), max_tokens=200)
        json.loads(message["content"])
        return message["content"], n


def _form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _value(text: str) -> str:
    try:
        return str(json.loads(text)["answer"])
    except (ValueError, KeyError, TypeError):
        return ""


def is_right(fact: Fact, answer: str) -> bool:
    return any(one in answer.lower() for one in fact.answers)


def count_right(servers: dict[str, Server], given: argparse.Namespace) -> None:
    known = [
        fact
        for fact in facts()
        if all(is_right(fact, one.plain(fact.question)[0]) for one in servers.values())
    ][: given.questions]
    print(f"{len(known)} questions that all answer in plain text\n")
    print("| server | by schema | tokens | by forced call | tokens | one of four by GBNF | tokens |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, server in servers.items():
        cells = []
        ways = {
            "schema": lambda fact, server=server: server.by_schema(fact.question),
            "call": lambda fact, server=server: server.by_call(fact.question),
            "choice": lambda fact, server=server: server.by_choice(fact.question, fact.choices),
        }
        for way, ask in ways.items():
            answers = [(fact, *ask(fact)) for fact in known]
            wrong = [(fact, text) for fact, text, _ in answers if not is_right(fact, text)]
            cells += [str(len(known) - len(wrong)), f"{mean(n for *_, n in answers):.1f}"]
            if given.show:
                print(*(f"{way}: {fact.question} {text!r}" for fact, text in wrong), sep="\n")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def count_calls(servers: dict[str, Server], given: argparse.Namespace) -> None:
    wanted, questions = tasks(), facts()[: given.questions]
    print(f"{len(wanted)} requests that want a tool, {len(questions)} questions that want none\n")
    print(
        "| server | called | the right tool | with its argument | required: right | with its argument ",
        end="",
    )
    print("| questions without a call | right |\n|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, server in servers.items():
        free = [server.with_tools(one.request) for one in wanted]
        forced = [server.with_tools(one.request, tool_choice="required") for one in wanted]
        answers = [server.with_tools(one.question) for one in questions]
        cells = [sum(bool(called) for called, *_ in free), *_right(wanted, free), *_right(wanted, forced)]
        cells += [sum(not called for called, *_ in answers)]
        cells += [
            sum(not one[0] and is_right(fact, one[2]) for fact, one in zip(questions, answers, strict=True))
        ]
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)


def _right(wanted: list[Task], calls: list[tuple[str, str, str]]) -> tuple[int, int]:
    """How many called the right tool, and how many of these with the argument."""
    chosen = [(one, call) for one, call in zip(wanted, calls, strict=True) if call[0] == one.tool]
    return len(chosen), sum(one.argument in call[1].lower() for one, call in chosen)


def time_answers(servers: dict[str, Server], given: argparse.Namespace) -> None:
    print("| clients | server | tokens | ms an answer, median (spread) | ratio |\n|---:|---|---:|---:|---:|")
    for clients in given.clients:
        seconds: dict[str, list[float]] = {name: [] for name in servers}
        tokens = {name: server.keys()[1] for name, server in servers.items()}
        for round in range(given.rounds):
            for name in list(servers)[:: 1 if round % 2 else -1]:
                seconds[name].append(_seconds(servers[name].keys, clients))
        first = median(next(iter(seconds.values())))
        for name, found in seconds.items():
            spread = f"{min(found) * 1e3:.0f} to {max(found) * 1e3:.0f}"
            middle = f"{median(found) * 1e3:.0f} ({spread})"
            print(f"| {clients} | {name} | {tokens[name]} | {middle} | {median(found) / first:.2f} |")


def _seconds(ask: Callable[[], object], clients: int) -> float:
    """Seconds until so many answers that are asked for at once are there, for each."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(lambda _: ask(), range(clients)))
    return (time.perf_counter() - begin) / clients


if __name__ == "__main__":
    main()
