"""The page in a browser: chats, tokens, tools, the engine's view; no foreign code, no other network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser import Browser, heard
from tests.server.scripted_server import Script, chunk, served, token

END = [
    chunk({}, "stop"),
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2,
                              "prompt_tokens_details": {"cached_tokens": 2}}},
]  # fmt: skip
MARKDOWN = """**bold** and *slanted*, `a < b`, $\\frac{a}{b} \\in \\mathbb{R}$ and $5 or $6.

1. one
2. two
   - inside

| a | b |
|---|--:|
| 1 | 2 |

```python
def f():
    return "<b>"
```
<img src=x onerror="document.title='forged'"> [bad](javascript:alert(1)) [good](https://example.org/a_b)

$$\\unknown{x}$$"""


@contextmanager
def opened(
    chromium: Browser,
    script: Script,
    size: tuple[int, int] = (1280, 800),
    color_scheme: str = "light",
    refusal: str = "401",
) -> Iterator[Any]:
    """The page; its console tells refusals of that status alone, and it asks its own server alone."""
    complaints: list[str] = []
    foreign: list[str] = []
    with (
        served(script) as address,
        chromium.page(size, color_scheme) as page,
        heard(
            page,
            pageerror=lambda error: complaints.append(str(error)),
            console=lambda said: complaints.append(said.text),
            request=lambda one: one.url.startswith((address, "data:")) or foreign.append(one.url),
        ),
    ):
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector("#about:has-text('scripted')")
        yield page
        assert [one for one in complaints if refusal not in one] == []
        assert foreign == []


def say(page: Any, text: str, nth: int = 1) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"article.assistant >> nth={nth - 1} >> footer")


def pieces(text: str, size: int = 7) -> list[dict[str, Any] | None]:
    return [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]


def test_an_answer_is_drawn_and_foreign_text_stays_text(chromium: Browser) -> None:
    script = Script([[chunk({"role": "assistant", "content": None}), *pieces(MARKDOWN), *END]])
    with opened(chromium, script) as page:
        say(page, "hello")
        content = page.locator("article.assistant .content")
        for selector, text in (
            ("strong", "bold"), ("em", "slanted"), ("p code", "a < b"), ("ol > li >> nth=0", "one"),
            ("ol ul li", "inside"), ("td.right", "2"), ("pre code", 'def f():\n    return "<b>"'),
            ("mfrac mi >> nth=0", "a"), (".tex", "\\unknown{x}"),
        ):  # fmt: skip
            assert content.locator(selector).first.text_content() == text, selector
        assert "ℝ" in content.locator("math").first.text_content()
        assert "$5 or $6" in content.text_content()
        assert content.locator("a").evaluate_all("all => all.map(a => a.href)") == ["https://example.org/a_b"]
        assert content.locator("img, script").count() == 0
        assert page.title() == "scripted - graphml"
        assert "3 + 2 tokens · 2 cached" in page.locator("article.assistant .facts").text_content()
        assert script.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]


def test_an_empty_conversation_names_the_model_and_what_may_be_asked(chromium: Browser) -> None:
    with opened(chromium, Script([])) as page:
        page.wait_for_function("!document.querySelector('.empty').textContent.startsWith('The model')")
        text = page.text_content(".empty")
        assert text.startswith(f"{page.text_content('#about span')} answers here")
        for example in page.locator(".empty .example").all():
            example.click()
            assert page.input_value("#message") == example.text_content()
        assert page.locator(".empty .example").count() == 2


def test_an_empty_conversation_says_that_the_model_has_no_template(chromium: Browser) -> None:
    for template in (True, False):
        with opened(chromium, Script([], has_template=template)) as page:
            page.wait_for_function("!document.querySelector('.empty').textContent.startsWith('The model')")
            assert ("no chat template" in page.text_content(".empty")) is not template


def test_a_person_writes_at_once(chromium: Browser) -> None:
    focused = "document.activeElement.id"
    with opened(chromium, Script([[*pieces("first"), *END]])) as page:
        assert page.evaluate(focused) == "message"
        say(page, "a question")
        for name in ("New conversation", "a question"):
            page.click("#show-settings")  # whose first field has the focus
            page.click(f"#list button:has-text('{name}') >> nth=0")
            assert page.evaluate(focused) == "message"


def test_an_empty_conversation_offers_tokens_by_probability(chromium: Browser) -> None:
    script = Script([[token("The", -0.1), *END]])
    with opened(chromium, script) as page:
        page.click(".empty >> text=Tokens by probability")
        assert page.get_attribute(".empty button[aria-pressed]", "aria-pressed") == "true"
        assert page.is_checked("#set-show_tokens")
        say(page, "hello")
        assert page.locator(".tokens .token").all_text_contents() == ["The"]
        page.click("text=New conversation")
        page.click(".empty >> text=Tokens by probability")
        assert page.get_attribute(".empty button[aria-pressed]", "aria-pressed") == "false"
        assert not page.is_checked("#set-show_tokens")


def test_tokens_by_probability_are_chosen_below_an_answer(chromium: Browser) -> None:
    script = Script([[*pieces("first"), *END], [token("The", -0.1), *END]])
    with opened(chromium, script) as page:
        say(page, "hello")
        page.click("article.assistant footer >> text=Tokens by probability")
        assert page.is_checked("#set-show_tokens")
        assert "made without probabilities" in page.text_content("article.assistant .content")
        page.click("article.assistant >> text=Write it again with them")
        page.wait_for_selector("article.assistant:has(.tokens .token) footer")  # the end draws it anew
        assert "made without" not in page.text_content("article.assistant")
        assert "draft" not in page.text_content(".token-legend")  # where no token came from one
        page.focus(".tokens .token")
        page.click("#alternatives")  # which keeps it open, and reaches nothing below
        assert page.is_visible("#alternatives")


def test_messages_are_edited_regenerated_stopped_and_kept(chromium: Browser) -> None:
    script = Script([[*pieces("first"), *END], [*pieces("second"), *END], [*pieces("third"), None]])
    with opened(chromium, script) as page:
        say(page, "a question")
        page.click("text=Regenerate")
        page.wait_for_selector("article.assistant:has-text('second') footer")
        assert script.bodies[1]["messages"] == script.bodies[0]["messages"]
        page.click("article.user >> text=Edit")
        assert page.input_value("#message") == "a question"
        page.fill("#message", "another")
        page.keyboard.press("Enter")
        page.wait_for_selector("article.assistant:has-text('third')")
        page.keyboard.press("Escape")
        page.wait_for_selector("article.assistant:has-text('stopped') footer")
        page.wait_for_timeout(100)
        assert script.left == 1  # the server has seen that nobody reads
        page.reload()
        page.wait_for_selector("article.assistant:has-text('third')")
        assert page.locator("article").count() == 2
        assert page.locator("#list li").count() == 1


def test_a_message_that_is_edited_stays_until_another_is_sent(chromium: Browser) -> None:
    script = Script([[*pieces("first"), *END], [*pieces("second"), *END]])
    with opened(chromium, script) as page:
        say(page, "a question")
        page.click("article.user >> text=Edit")
        assert page.locator("article.edited").text_content().startswith("You")
        page.keyboard.press("Escape")
        assert (page.input_value("#message"), page.locator("article.edited").count()) == ("", 0)
        page.click("article.user >> text=Edit")
        page.reload()
        page.wait_for_selector("article.assistant:has-text('first')")
        page.click("article.user >> text=Edit")
        page.fill("#message", "another")
        page.keyboard.press("Enter")
        page.wait_for_selector("article.assistant:has-text('second') footer")
        assert [one["content"] for one in script.bodies[1]["messages"]] == ["another"]
        assert page.locator("article").count() == 2


def test_a_long_message_is_in_sight_beside_the_settings(chromium: Browser) -> None:
    with opened(chromium, Script([])) as page:
        page.fill(
            "#message", "a sentence of one line that has two where the settings take a part of the width, so"
        )
        page.click("#show-settings")
        page.wait_for_timeout(200)
        hidden = "box => box.scrollHeight - box.clientHeight"
        assert page.locator("#message").evaluate(hidden) <= 0


def test_the_settings_say_whether_temperature_0_has_one_answer(chromium: Browser) -> None:
    for deterministic in (False, True):
        with opened(chromium, Script([], deterministic=deterministic)) as page:
            page.click("#show-settings")
            assert page.locator("#same-bits").count() == int(not deterministic)
            assert ("--deterministic" in page.text_content("#settings")) is not deterministic


def test_settings_go_into_requests_and_wrong_ones_do_not(chromium: Browser) -> None:
    script = Script([[*pieces("x"), *END]])
    with opened(chromium, script) as page:
        page.click("#show-settings")
        assert "Max tokens" in page.text_content("label:has(#set-max_tokens), label[for=set-max_tokens]")
        for name, default in (("temperature", "0.8"), ("seed", "random"), ("max_tokens", "no limit")):
            assert page.get_attribute(f"#set-{name}", "placeholder") == default
        page.fill("#set-temperature", "0.5")
        page.fill("#set-top_p", "7")  # above 1
        page.fill("#set-system", "Be brief.")
        page.fill("#set-schema", "{no JSON")
        page.fill("#set-stop", "END\nSTOP")
        page.locator("#set-stop").blur()
        assert "not used" in page.locator("#wrong-schema").text_content()
        assert page.locator("#wrong-top_p").text_content() == "not used: wanted a number from 0 to 1"
        say(page, "hello")
        body = script.bodies[0]
        assert body["temperature"] == 0.5
        assert body["stop"] == ["END", "STOP"]
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert not {"top_p", "response_format", "tools"} & set(body)


def test_an_answer_can_be_looked_at_by_its_tokens_afterwards(chromium: Browser) -> None:
    """It is not written again, which may be another one."""
    script = Script([[token("The", -0.1), token(" end", -3.0), *END]])
    with opened(chromium, script) as page:
        say(page, "hello")
        assert page.locator(".tokens").count() == 0
        page.click("article.assistant footer >> text=Tokens by probability")
        assert page.locator(".tokens .token").all_text_contents() == ["The", " end"]
        assert len(script.bodies) == 1


def test_a_model_without_probabilities_is_asked_for_none(chromium: Browser) -> None:
    script = Script([[*pieces("first"), *END], [*pieces("second"), *END]], unscored=True)
    with opened(chromium, script, refusal="400") as page:
        for nth, text in enumerate(("first", "second"), 1):
            say(page, "hello", nth)
            assert text in page.locator("article.assistant").last.text_content()
    assert ["logprobs" in body for body in script.bodies] == [True, False, False]


def test_tokens_show_their_alternatives_and_the_cached_prompt(chromium: Browser) -> None:
    answer = [token("The", -0.1, entropy=0.5, rank=1), token(" end", -3.0, drafted=True), *END]
    script = Script([answer])
    with opened(chromium, script) as page:
        page.click("#show-settings")
        page.check("#set-show_tokens")
        page.keyboard.press("Escape")
        say(page, "one two three")
        assert script.bodies[0]["logprobs"] is True
        tokens = page.locator(".tokens .token")
        assert tokens.all_text_contents() == ["The", " end"]
        tokens.first.hover()
        box = page.locator("#alternatives").text_content()
        assert all(part in box for part in ("90.5 %", "entropy 0.50", "rank 1", "↵", "8.2 %"))
        tokens.first.focus()
        page.keyboard.press("ArrowRight")
        assert "from a draft" in page.locator("#alternatives").text_content()
        assert page.locator(".token.drafted").first.text_content() == " end"
        page.click(".prompt summary")
        assert page.locator(".prompt .cached").text_content() == "one two "
        lights = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
        assert lights[0] != lights[1]


@pytest.mark.parametrize(
    ("timings", "summary", "facts"),
    [
        ({"cache_n": 2, "prompt_n": 1, "prompt_ms": 90.4, "predicted_n": 1, "predicted_per_second": 0.0},
         "Prompt: 3 tokens, 2 of them from the cache", "3 + 1 tokens · 2 cached · prompt 90 ms · stopped"),
        (None, "Prompt: 3 tokens", "stopped"),
    ],
)  # fmt: skip
def test_an_answer_that_was_stopped_shows_what_is_known(
    chromium: Browser, timings: dict[str, Any] | None, summary: str, facts: str
) -> None:
    part = token("The", -0.1) if timings is None else {**token("The", -0.1), "timings": timings}
    with opened(chromium, Script([[part, None]])) as page:
        page.click("#show-settings")
        page.check("#set-show_tokens")
        page.keyboard.press("Escape")
        page.fill("#message", "one two three")
        page.keyboard.press("Enter")
        page.wait_for_selector(".tokens .token")
        page.click("#stop")
        page.wait_for_selector(".prompt summary")
        assert page.text_content(".prompt summary") == summary
        assert page.text_content("article.assistant .facts") == facts
        assert page.locator(".prompt .cached").text_content() == ("one two " if timings else "")


def test_an_answer_is_seen_as_it_is_denoised(chromium: Browser) -> None:
    def step(number: int, text: str) -> dict[str, Any]:
        denoising = {"step": number, "steps": 9, "open": "░", "text": text}
        return {**chunk({}), "denoising": denoising}

    steps = [chunk({"role": "assistant", "content": None}), step(1, "░░<b>░"), step(2, "*a*░<b>░"), None]
    script = Script([steps, [*steps[:-1], *pieces("*a* c<b>!"), *END]])
    with opened(chromium, script) as page:
        page.fill("#message", "hello")
        page.keyboard.press("Enter")
        page.wait_for_selector(".denoising:has-text('Step 2 of 9')")
        assert page.text_content(".denoising") == "*a*░<b>░Step 2 of 9"
        assert page.locator(".denoising .open").all_text_contents() == ["░", "░"]
        page.click("#stop")
        page.wait_for_selector("article.assistant footer")
        assert page.locator(".denoising").count() == 0
        say(page, "again", 2)
        assert page.locator(".denoising").count() == 0
        assert page.text_content("article.assistant >> nth=1 >> .content") == "a c<b>!"
    assert script.bodies[0]["return_denoising"] is True


def test_the_end_of_an_answer_is_in_sight(chromium: Browser) -> None:
    """With what is told below it, too, once it has ended."""
    script = Script([[*(token("line\n", -0.1) for _ in range(80)), *END]])
    with opened(chromium, script) as page:
        page.click("#show-settings")
        page.check("#set-show_tokens")
        page.keyboard.press("Escape")
        say(page, "one")
        page.wait_for_selector(".prompt summary")
        left = "(box) => box.scrollHeight - box.scrollTop - box.clientHeight"
        assert page.locator("#messages").evaluate(left) < 2


def test_a_tool_call_waits_for_its_result(chromium: Browser) -> None:
    called = [{"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": '{"city": "Bern"}'}}]
    script = Script([
        [chunk({"reasoning_content": "hm"}), chunk({"tool_calls": called}), chunk({"tool_calls": more}),
         chunk({}, "tool_calls")],
        [*pieces("Sunny."), *END],
    ])  # fmt: skip
    with opened(chromium, script) as page:
        page.click("#show-settings")
        page.fill("#set-tools", '[{"type": "function", "function": {"name": "weather"}}]')
        page.check("#set-use_tools")
        say(page, "weather?")
        assert script.bodies[0]["tools"][0]["function"]["name"] == "weather"
        assert page.locator(".call").text_content().startswith("Calls weather{")
        assert page.locator(".reasoning").text_content() == "Reasoninghm"
        page.fill(".call textarea", "22 degrees")
        page.click("text=Give this result")
        page.wait_for_selector("article.assistant:has-text('Sunny')")
        call, result = script.bodies[1]["messages"][1:]
        assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}
        assert result == {"role": "tool", "content": "22 degrees", "tool_call_id": "c1"}


def test_errors_are_shown_and_the_chat_goes_on(chromium: Browser) -> None:
    script = Script(
        [
            [chunk({"content": "half"}), {"error": {"message": "the step has failed"}}],
            [*pieces("whole"), *END],
        ]
    )
    with opened(chromium, script) as page:
        say(page, "hello")
        assert page.locator("article .error").text_content() == "the step has failed"
        say(page, "again", 2)
        assert page.locator("article.assistant >> nth=1").locator(".content").text_content() == "whole"


def test_a_key_is_asked_for_and_goes_with_the_tab(chromium: Browser) -> None:
    script = Script([[*pieces("open"), *END]], key="secret")
    with opened(chromium, script) as page:
        page.fill("#message", "hello")
        page.keyboard.press("Enter")
        page.fill("#key-value", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("article.assistant:has-text('open')")
        assert "secret" not in page.evaluate("JSON.stringify(localStorage)")


STATE = {
    "now_s": 10.0,
    "steps": [
        {"number": i, "begin_s": 9 + i / 10, "end_s": 9.08 + i / 10, "compute_s": 0.08, "budget": 64,
         "failed": False,
         "rows": [{"sequence": 3, "start": 5 + i, "count": 1, "generates": True, "found": 0},
                  {"sequence": 4, "start": 16 * i, "count": 16, "generates": False, "found": 0}],
         "waiting": [{"sequence": 5, "reason": "prefix"}], "preempted": [], "evicted": 0,
         "blocks_used": 3, "blocks_free": 5}
        for i in range(10)
    ],
    "sequences": [
        {"id": 3, "status": "running", "n_prompt": 4, "n_cached": 0, "n_computed": 15, "n_generated": 11,
         "blocks": [0, 1], "waits_for": ""},
        {"id": 4, "status": "running", "n_prompt": 200, "n_cached": 32, "n_computed": 160, "n_generated": 0,
         "blocks": [0, 2], "waits_for": ""},
        {"id": 5, "status": "waiting", "n_prompt": 200, "n_cached": 0, "n_computed": 0, "n_generated": 0,
         "blocks": [], "waits_for": "prefix"},
    ],
    "blocks": {"count": 8, "size": 32, "kept": [5]},
    "stats": {"running": 2, "waiting": 1, "blocks_used": 3, "blocks_free": 5, "hit_tokens": 32,
              "step_p50_s": 0.08, "rows_per_step": 17.0, "n_preempted": 0},
}  # fmt: skip


def test_steps_are_recorded_from_a_question_on(chromium: Browser) -> None:
    script = Script([[chunk({"content": "Hi"}), *END]], state={**STATE, "steps": []})
    with opened(chromium, script) as page:
        with page.expect_request("**/engine/state?*"):
            say(page, "hello")
        page.click("#tab-engine")
        page.wait_for_selector("text=No steps to show")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_engine_shows_steps_sequences_and_blocks(chromium: Browser, scheme: str, width: int) -> None:
    with opened(chromium, Script(state=STATE), (width, 800), scheme) as page:
        page.focus("#tab-chat")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#engine tbody tr >> nth=2")
        assert page.get_attribute("canvas", "aria-label") == "10 steps of 3 sequences in the last 12 seconds"
        rows = page.locator("#engine tbody tr").all_text_contents()
        assert rows[2].endswith("another one to compute its beginning")
        kinds = page.eval_on_selector_all(".block", "all => all.map(one => one.className)")
        held = ["block shared", "block held", "block held"]
        assert kinds == [*held, "block", "block", "block kept", "block", "block"]
        assert "held by sequence 3, sequence 4" in page.get_attribute(".block.shared", "title")
        tiles = dict(
            zip(*(page.locator(f".tiles {tag}").all_text_contents() for tag in ("dt", "dd")), strict=True)
        )
        assert (tiles["running"], tiles["blocks in use"]) == ("2", "3 of 8")
        assert tiles["prompt rows a second"] == str(round(160 / 0.98))
        painted = """() => {
          const { width, height } = document.querySelector("canvas");
          const drawn = document.querySelector("canvas").getContext("2d").getImageData(0, 0, width, height);
          return new Set(new Uint32Array(drawn.data.buffer)).size; }"""
        assert page.evaluate(painted) > 5
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_worker_of_another_page_is_replaced_and_leaves(chromium: Browser) -> None:
    with opened(chromium, Script()) as page:
        page.evaluate("caches.open('old').then((cache) => cache.put('/', new Response('old page')))")
        page.evaluate("{ navigator.serviceWorker.register('/sw.js') }")
        gone = """Promise.all([navigator.serviceWorker.getRegistrations(), caches.keys()])
            .then(([workers, names]) => workers.length + names.length === 0)"""
        page.wait_for_function(f"() => {gone}")
        assert page.evaluate("fetch('/').then((found) => found.text())").startswith("<!doctype html>")


def test_a_phone_has_all_in_its_width(chromium: Browser) -> None:
    long = "word " * 60 + "`" + "x" * 200 + "`"
    script = Script([[*pieces(long, 50), *END]])
    with opened(chromium, script, (390, 800)) as page:
        say(page, "hello")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.click("#show-settings")
        assert page.locator("#settings").bounding_box()["width"] == 390
        page.click("#tab-engine")
        assert page.locator("#settings").is_hidden()
        page.click("#tab-chat")
        page.click("#show-settings")
        page.keyboard.press("Escape")
        page.click("#show-list")
        page.click("text=New conversation")
        assert page.locator("article").count() == 0


def test_a_title_has_no_marks_of_markdown_and_code_is_monospaced_among_tokens(chromium: Browser) -> None:
    words = ["See\n", "```", "py\n", "  x", "\n```\n", "done"]
    with opened(chromium, Script([[*(token(word, -0.1) for word in words), *END]])) as page:
        page.click(".empty >> text=Tokens by probability")
        say(page, "## Make a *table* of `x`")
        assert page.text_content("#list li button >> nth=0") == "Make a table of x"
        assert page.locator(".token.code").all_text_contents() == ["```", "py\n", "  x"]


def test_many_blocks_are_drawn_as_groups_and_said_to_be(chromium: Browser) -> None:
    state = {**STATE, "blocks": {"count": 2048, "size": 32, "kept": []}}
    with opened(chromium, Script(state=state)) as page:
        page.click("#tab-engine")
        page.wait_for_selector(".block")
        assert page.locator(".block").count() == 1024
        assert "A square is 2 blocks." in page.text_content("#engine")
