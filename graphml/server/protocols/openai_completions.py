"""`/v1/completions`: OpenAI's protocol for prompts that are texts or ids, which `echo` repeats.

Knows that protocol; see https://platform.openai.com/docs/api-reference/completions.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from graphml.api.request_handle import ranked
from graphml.api.token_stream import Result
from graphml.api.tokens import Token
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.server.access.text_limits import check_chars
from graphml.server.engine.running_request import Generation
from graphml.server.engine.service import (
    FINGERPRINT,
    Service,
    all_finished,
    cancel_all,
    merged,
    new_id,
    timings,
    usage,
)
from graphml.server.protocols.llama_completion import final
from graphml.server.protocols.request_body import body_of
from graphml.server.protocols.shown_logprobs import in_lists
from graphml.server.requests.prompts import begins_with_text
from graphml.server.requests.request_fields import Completion, TextCompletion
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.server.responses.api_errors import wrong_field
from graphml.server.responses.event_stream import DONE, EventStream, event, unless_left
from graphml.server.responses.json_response import gone, json_response
from graphml.text.tokenizer import Tokenizer


class EchoedPrompt:
    """A prompt's ids as its client knows them. given, number: the field of the request, and which prompt.

    What the server puts before a text, a begin token or a space, is no part of it; ids that a client has sent
    are all shown, control tokens without text.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], prompt: Any, number: int) -> None:
        self._begin = int(begins_with_text(prompt, number) and bool(ids) and ids[0] == tokenizer.bos)
        shown = ids[self._begin :]
        self.pieces = [b"" if tokenizer.is_special(id) else tokenizer.piece_bytes(id) for id in shown]
        if self.pieces and self.pieces[0]:
            self.pieces[0] = tokenizer.first_bytes(shown[0])

    @property
    def text(self) -> str:
        """The prompt as a text."""
        return b"".join(self.pieces).decode("utf-8", "replace")

    def scores(self, every: Sequence[TokenLogprobs | None]) -> list[TokenLogprobs | None]:
        """Those of its pieces, of all ids of the prompt; none without any.

        None for one that nothing is before, or that was not computed since the request ended before.
        """
        known = every[self._begin : self._begin + len(self.pieces)]
        return [*known, *[None] * (len(self.pieces) - len(known))] if every else []


async def completions(service: Service, request: Request) -> Response | EventStream:
    """`POST /v1/completions`."""
    completion = await body_of(service, request, TextCompletion)

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        settings = service.settings(completion)
        if completion.suffix:
            return _filling(service, completion, completion.suffix, settings), settings
        ids = service.prompts_of(completion.prompt)
        return ids, settings

    generations = await service.begin(request, completion, prompts)
    shown = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()),
             "model": service.answers_as, "system_fingerprint": FINGERPRINT}  # fmt: skip

    leave = partial(cancel_all, generations)
    if completion.stream:
        events = _events(service, completion, generations, shown)
        return service.shared.stream(request, events, leave, completion.sse_ping_interval)

    await unless_left(request.receive, all_finished(generations), leave)
    if await request.is_disconnected():
        return gone()
    results = [result for generation in generations for result in generation.results()]
    body: dict[str, Any] = {
        **shown,
        "choices": [
            _whole(
                service,
                completion,
                number,
                generation,
                answer,
                number * (generation.settings.n_best or generation.settings.n) + index,
            )
            for number, generation in enumerate(generations)
            for index, answer in enumerate(_told(generation))
        ],
        "usage": _usage(generations),
        "timings": timings(results[0]),
    }
    if completion.verbose or service.options.verbose:
        body["__verbose"] = final(service, completion, generations[0], 0, 0)
    return json_response(body)


def _filling(
    service: Service, completion: TextCompletion, suffix: str, settings: RequestSettings
) -> list[list[int]]:
    """Prompts for the text between a prompt and `suffix`; UsageError for a model that fills no gaps."""
    texts = completion.prompt if isinstance(completion.prompt, list) else [completion.prompt]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise wrong_field("prompt", "wanted a text, or a list of texts, with suffix")
    if len(texts) > service.options.limits.prompts:
        raise wrong_field("prompt", f"at most {service.options.limits.prompts} prompts are wanted")
    if completion.echo:
        raise wrong_field("echo", "wanted no suffix with it")
    n_ctx, most = service.access.n_ctx, settings.max_tokens
    for text in (*texts, suffix):
        check_chars(text, service.options.limits.tokenized_chars, "prompt")
    return [service.model.fill_ids(text, suffix, max_tokens=most, n_ctx=n_ctx) for text in texts]


def _told(generation: Generation) -> list[tuple[Result, int]]:
    """The answers of a prompt, all or the best of them first, each with how many of its tokens are shown."""
    results, n_best = generation.results(), generation.settings.n_best
    shown = {id(result): generation.shown(index) for index, result in enumerate(results)}
    return [(best, shown[id(best)]) for best in (results if n_best is None else ranked(results)[:n_best])]


async def _events(
    service: Service, completion: Completion, generations: list[Generation], shown: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    each = generations[0].settings.n
    counts: dict[int, int] = {}
    held: dict[int, list[Token]] = {}
    told_chars: dict[int, int] = {}

    def part(
        index: int, text: str, pieces: list[bytes], logprobs: list[TokenLogprobs | None]
    ) -> dict[str, Any]:
        """The next text of an answer, and the scores of its tokens, if there are any."""
        at = told_chars.get(index, 0)
        told_chars[index] = at + len(text)
        scores = in_lists(logprobs, pieces, at) if logprobs else None
        return {**shown, "choices": [choice(index, text, None, scores)]}

    def echo(index: int) -> bytes:
        number = index // each
        prompt = EchoedPrompt(service.tokenizer, generations[number].ids, completion.prompt, number)
        scores = prompt.scores(generations[number].sequences[0].prompt_scores or [])
        return event(part(index, prompt.text, prompt.pieces, scores))

    async for index, token in merged(generations):
        if completion.echo and index not in counts:
            yield echo(index)
        counts[index] = counts.get(index, 0) + 1
        held.setdefault(index, []).append(token)
        if not token.piece:
            continue
        scored = [token for token in held.pop(index) if token.logprobs is not None]
        pieces = [service.tokenizer.piece_bytes(entry.id) for entry in scored]
        chunk = part(index, token.piece, pieces, [entry.logprobs for entry in scored])
        if completion.timings_per_token:
            chunk["timings"] = generations[index // each].used(index % each, counts[index]).timings
        yield event(chunk)
    results = [result for generation in generations for result in generation.results()]
    wants_usage = completion.stream_options is not None and completion.stream_options.include_usage
    for index, result in enumerate(results):
        if completion.echo and index not in counts:  # an answer of no tokens
            yield echo(index)
        last = {**shown, "choices": [choice(index, "", reason(result.stop_reason))]}
        yield event(last if wants_usage else {**last, "timings": timings(result)})
    if wants_usage:
        yield event({**shown, "choices": [], "usage": _usage(generations), "timings": timings(results[0])})
    yield DONE


def reason(stop_reason: str) -> str:
    """Why an answer ended, as OpenAI says it."""
    return "stop" if stop_reason in ("end", "stop") else "length"


def choice(
    index: int, text: str, finish_reason: str | None, scores: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One answer, or a part of it."""
    return {"text": text, "index": index, "logprobs": scores, "finish_reason": finish_reason}


def _whole(
    service: Service,
    completion: Completion,
    number: int,
    generation: Generation,
    answer: tuple[Result, int],
    index: int,
) -> dict[str, Any]:
    """An answer at its end, of the prompt of that number."""
    result, n_shown = answer
    echoed = EchoedPrompt(
        service.tokenizer, generation.ids if completion.echo else [], completion.prompt, number
    )
    scores = None
    if result.logprobs is not None and (completion.logprobs is not None or completion.n_probs):
        pieces = [service.tokenizer.piece_bytes(id) for id in result.tokens[:n_shown]]
        # Who scores a text asks for one token more, and leaves the last entry out: an end token is one, too.
        end = [None] if completion.echo and result.stop_reason == "end" else []
        logprobs = [*echoed.scores(result.prompt_logprobs or []), *result.logprobs[:n_shown], *end]
        scores = in_lists(logprobs, [*echoed.pieces, *pieces, *(b"" for _ in end)], 0)
    return choice(index, echoed.text + result.text, reason(result.stop_reason), scores)


def _usage(generations: list[Generation]) -> dict[str, Any]:
    every = [usage(generation.results()) for generation in generations]
    total = {
        name: sum(counts[name] for counts in every)
        for name in ("completion_tokens", "prompt_tokens", "total_tokens")
    }
    cached = sum(counts["prompt_tokens_details"]["cached_tokens"] for counts in every)
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}
