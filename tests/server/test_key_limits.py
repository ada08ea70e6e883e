"""What a key may use: its allowances, its share, and what metrics tell of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from graphml.server.options.api_keys import keys_in
from graphml.server.options.key_limits import KeyLimits, KeyUse
from graphml.server.options.server_options import ServerOptions
from graphml.server.responses.api_errors import ApiError
from tests.server.running_server import Running, running

KEYS = "small requests=3 tokens=200 streams=2 priority=1\nlarge weight=3\n# priority=5\n"
SMALL, LARGE = {"X-Api-Key": "small"}, {"X-Api-Key": "large"}


@pytest.fixture
def keyed(stories: graphml.Model, tmp_path: Path) -> Iterator[Running]:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    options = ServerOptions(
        parallel=2, n_ctx=512, metrics=True, api_keys=("own",), api_key_file=path, file_keys=keys_in(path)
    )
    with running(options, stories) as found:
        yield found


def test_an_allowance_fills_up_over_a_minute() -> None:
    now = [0.0]
    use = KeyUse(KeyLimits(requests=2, tokens=60, streams=4), lambda: now[0])
    use.begin(30, 1, 0)
    use.begin(30, 1, 1)
    for wait, refused in ((30, True), (29, False)):  # a request each 30 s, a token each second
        with pytest.raises(ApiError, match="2 requests a minute") as error:
            use.begin(0, 1, 0)
        assert error.value.headers == {"Retry-After": str(30 - now[0]).removesuffix(".0")}
        now[0] += wait - refused
    now[0] = 30
    use.generated(50)  # 30 have come since, and 20 are owed
    with pytest.raises(ApiError, match="60 tokens a minute") as error:
        use.begin(10, 1, 0)
    assert error.value.headers == {"Retry-After": "30"}
    now[0] = 60
    use.begin(10, 1, 0)
    assert (use.requests, use.refused, use.prompt_tokens, use.generated_tokens) == (3, 3, 70, 50)
    for given in ((61, 1), (1, 5)):
        with pytest.raises(ApiError) as error:
            use.begin(*given, 0)
        assert error.value.status == 400  # which no waiting changes


def test_a_key_that_is_used_up_waits_and_others_do_not(keyed: Running) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 2}
    for _ in range(3):
        assert keyed.post("/completion", body, headers=SMALL).status_code == 200
    refused = keyed.post("/completion", body, headers=SMALL)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert 1 <= int(refused.headers["Retry-After"]) <= 20
    assert keyed.post("/v1/embeddings", {"input": "a"}, headers=SMALL).status_code == 429
    for _ in range(4):
        assert keyed.post("/completion", body, headers=LARGE).status_code == 200
    lines = keyed.http.get("/metrics", headers=LARGE).text.splitlines()
    told = dict(re.fullmatch(r'graphml:key_(\w+)\{key="1"\} (\d+)', one).groups()  # type: ignore[union-attr]
                for one in lines if 'key="1"' in one)  # fmt: skip
    assert told == {
        "requests_total": "3", "refused_total": "2", "prompt_tokens_total": told["prompt_tokens_total"],
        "generated_tokens_total": "6", "requests_processing": "0",
    }  # fmt: skip
    assert int(told["prompt_tokens_total"]) % 3 == 0
    assert 'graphml:key_requests_total{key="2"} 4' in lines
    assert 'graphml:key_requests_total{key="given 1"} 0' in lines
    assert not any(word in one for one in lines for word in ("small", "large", 'own"'))


def test_a_key_has_so_many_answers_at_a_time(keyed: Running) -> None:
    body = {"prompt": "a", "n_predict": 1}
    assert keyed.post("/completion", {**body, "n": 3}, headers=SMALL).status_code == 400
    owner = keyed.service.keys.owner_of("small")
    with keyed.service.access.all_or_none(1, 1, owner):  # another one
        assert keyed.post("/completion", {**body, "n": 2}, headers=SMALL).status_code == 429
        assert keyed.post("/completion", body, headers=SMALL).status_code == 200
        assert keyed.post("/completion", {**body, "n": 4}, headers=LARGE).status_code == 200
    assert keyed.service.access.running_of(owner or "") == 0


def test_the_engine_is_told_weights_and_bounded_priorities(
    keyed: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = keyed.service.access.engine
    assert engine is not None
    submit, told = engine.submit, []

    def watched(*given: object, **named: object) -> object:
        handle = submit(*given, **named)  # type: ignore[arg-type]
        told.append((handle.sequences[0].request.weight, handle.sequences[0].request.priority))
        return handle

    monkeypatch.setattr(engine, "submit", watched)
    for key in (SMALL, LARGE):
        asked = {"prompt": "a", "n_predict": 1, "priority": 7, "deadline": 60}
        assert keyed.post("/completion", asked, headers=key).status_code == 200
    assert told == [(1.0, 1), (3.0, 7)]


def test_a_deadline_ends_an_answer_as_it_is(keyed: Running) -> None:
    asked = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "deadline": 1e-3}
    answer = keyed.post("/completion", asked, headers=LARGE).json()
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] < 500
    wrong = keyed.post("/completion", {**asked, "deadline": 0}, headers=LARGE)
    assert wrong.json()["error"]["param"] == "deadline"


def test_other_limits_count_after_a_reload_and_what_was_used_stays(keyed: Running) -> None:
    keys, body = keyed.service.keys, {"prompt": "a", "n_predict": 1}
    assert keyed.post("/completion", body, headers=SMALL).status_code == 200
    path = keyed.service.options.api_key_file
    assert path is not None
    path.write_text("large\nsmall streams=1\n")
    keys.reload()
    use = keys.use_of(keys.owner_of("small"))
    assert use is not None
    assert (use.requests, use.limits) == (1, KeyLimits(streams=1))
    for _ in range(4):
        assert keyed.post("/completion", body, headers=SMALL).status_code == 200
