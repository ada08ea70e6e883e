"""What the page keeps and takes: answers over a reload, conversations as files, text files, models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from tests import tiny_model
from tests.browser import Browser
from tests.server.running_server import running
from tests.server.scripted_server import Script
from tests.server.test_page import END, opened, pieces, say

HALF = pieces("the first half, ")


def ask(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")


def text_file(name: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "text/plain", "buffer": content}


def test_an_answer_goes_on_after_a_reload(chromium: Browser) -> None:
    script = Script([[*HALF, None]], rest=[*pieces("and the second."), *END])
    with opened(chromium, script) as page:
        ask(page, "a tale")
        page.wait_for_selector("article.assistant:has-text('first half,')")
        page.reload()
        page.wait_for_selector("article.assistant footer")
        content = page.locator("article.assistant .content").text_content()
        assert content == "the first half, and the second."
        assert script.asked == [("GET", script.names[0], str(len(HALF)))]
        page.reload()
        page.wait_for_selector("article.assistant footer")
        assert len(script.asked) == len(script.bodies) == 1


def test_an_answer_that_is_not_kept_says_so_after_a_reload(chromium: Browser) -> None:
    with opened(chromium, Script([[*HALF, None]]), refusal="404") as page:
        ask(page, "a tale")
        page.wait_for_selector("article.assistant:has-text('first half,')")
        page.reload()
        page.wait_for_selector("article.assistant footer")
        assert page.locator("article .error").text_content() == "the rest of this answer is not kept any more"
        assert page.locator("article.assistant .content").text_content() == "the first half, "


def test_an_answer_that_is_stopped_ends_at_the_server(chromium: Browser) -> None:
    script = Script([[*HALF, None]])
    with opened(chromium, script) as page:
        ask(page, "a tale")
        page.wait_for_selector("article.assistant:has-text('first half,')")
        with page.expect_request("**/v1/stream?*"):
            page.click("#stop")
        page.wait_for_selector("article.assistant:has-text('stopped') footer")
        page.wait_for_timeout(50)
        assert script.asked == [("DELETE", script.names[0], None)]


def test_a_models_answer_is_whole_after_a_reload(chromium: Browser, stories: graphml.Model) -> None:
    """It is in the midst of it when the page is loaded anew."""
    goes_on = threading.Event()
    goes_on.set()

    def held(ids: Any, logits: Any, history: Any) -> Any:
        assert len(history) < 60 or goes_on.wait(60)
        return logits

    options = ServerOptions(parallel=2, n_ctx=512, params=graphml.SamplingParams(function=held))
    asked = {"messages": [{"role": "user", "content": "Once"}], "temperature": 0, "max_tokens": 100}
    with running(options, stories) as server, chromium.page((1280, 800)) as page:
        wanted = server.post("/v1/chat/completions", asked).json()["choices"][0]["message"]["content"]
        page.goto(server.address)
        settings = json.dumps({"temperature": 0, "max_tokens": 100})
        page.evaluate("(text) => localStorage.setItem('graphml-settings', text)", settings)
        page.reload()
        page.wait_for_selector("body[data-ready]")
        goes_on.clear()
        ask(page, "Once")
        page.wait_for_selector("article.assistant .content p")
        page.reload()
        page.wait_for_selector("article.assistant[aria-busy=true] .content p")
        goes_on.set()
        page.wait_for_selector("article.assistant footer")
        kept = json.loads(page.evaluate("localStorage.getItem('graphml-conversations')"))
        assert kept[0]["messages"][1]["content"] == wanted
        assert server.at_rest()


def test_conversations_go_into_a_file_and_come_back(chromium: Browser, tmp_path: Path) -> None:
    script = Script([[*pieces("first"), *END], [*pieces("second"), *END]])
    with opened(chromium, script) as page:
        say(page, "a question")
        page.click("text=New conversation >> nth=0")
        say(page, "another")
        with page.expect_download() as saving:
            page.click("text=Export")
        saving.value.save_as(tmp_path / "saved.json")
        saved = json.loads((tmp_path / "saved.json").read_text())
        assert [one["title"] for one in saved["conversations"]] == ["another", "a question"]
        page.set_input_files("#import", tmp_path / "saved.json")
        page.wait_for_selector("#imported:has-text('0 conversations')")
        page.click("[aria-label='Delete another']")
        page.click("[aria-label='Delete a question']")
        page.set_input_files("#import", tmp_path / "saved.json")
        page.wait_for_selector("article.assistant:has-text('second')")
        assert page.locator("#list li").count() == 2
        page.reload()
        page.wait_for_selector("article.assistant:has-text('second')")


def conversations(more: dict[str, Any]) -> str:
    """A file with one message that has more fields."""
    message = {"role": "user", "content": "Hi", **more}
    return json.dumps({"format": "graphml conversations", "conversations": [{"messages": [message]}]})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no JSON"), ("[]", "wanted a file that was exported here"),
        ('{"format": "graphml conversations", "conversations": [{"messages": [{"role": "user"}]}]}',
         "conversation 1, message 1: wanted a role and a text"),
        (conversations({"tool_calls": [{}]}), "message 1: wanted tool_calls with id and function"),
        (conversations({"files": 3}), "message 1: wanted files with name and text"),
        (conversations({"timings": {"predicted_per_second": "x"}}),
         "message 1: wanted numbers in usage and timings"),
        (conversations({"reasoning": 3}), "message 1: wanted texts"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_does_not_come(chromium: Browser, content: str, words: str) -> None:
    with opened(chromium, Script([])) as page:
        page.set_input_files("#import", text_file("other.json", content.encode()))
        page.wait_for_selector(".conversation-files .error:not(:empty)")
        wrong = page.locator(".conversation-files .error").text_content()
        assert wrong.startswith("other.json: ")
        assert words in wrong


def test_a_text_file_goes_with_a_message(chromium: Browser) -> None:
    script = Script([[*pieces("read"), *END], [*pieces("again"), *END]])
    with opened(chromium, script) as page:
        notes = text_file("notes.md", b"```\ncode\n```")
        page.set_input_files(
            "#file", [notes, text_file("gone.txt", b"x"), text_file("picture.png", b"\x89PNG\0\xff")]
        )
        page.wait_for_selector("#files .error")
        assert page.locator("#files .error").text_content() == "picture.png: wanted a text file in UTF-8"
        page.click("[aria-label='Take gone.txt away']")
        assert page.locator("#files li").all_text_contents() == ["notes.md×"]
        say(page, "What is this?")
        (message,) = script.bodies[0]["messages"]
        assert message["content"] == "What is this?\n\nFile notes.md:\n````\n```\ncode\n```\n````"
        assert page.locator("article.user .plain").text_content() == "What is this?"
        assert page.locator("article.user .file summary").text_content() == "notes.md"
        page.click("article.user >> text=Edit")
        assert page.locator("#files li").all_text_contents() == ["notes.md×"]
        say(page, "And now?")
        assert script.bodies[1]["messages"][0]["content"].startswith("And now?\n\nFile notes.md:")


def test_another_model_is_chosen(chromium: Browser) -> None:
    script = Script([], files=["broken", "other", "scripted"])
    with opened(chromium, script, refusal="400") as page:
        assert page.locator("#model").input_value() == "scripted"
        page.select_option("#model", "other")
        page.wait_for_function("() => document.title === 'other - graphml'")
        page.select_option("#model", "broken")
        page.wait_for_selector("#about-error:not(:empty)")
        assert page.locator("#about-error").text_content() == "broken: cannot be served"
        page.wait_for_selector("#model:enabled")
        assert page.locator("#model").input_value() == script.served == "other"


def test_what_is_wrong_with_a_setting_is_said_beside_it(chromium: Browser) -> None:
    script = Script([[*pieces("x"), *END]])
    with opened(chromium, script, refusal="400") as page:
        page.click("#show-settings")
        for name, value, words in (
            ("top_k", "1.5", "not used: wanted a whole number of 0 or more"),
            ("temperature", "9", "not used: wanted a number from 0 to 5"),
            ("schema", "[1]", "not used: wanted a JSON schema as an object"),
            ("tools", '[{"name": "f"}]', "not used: tool 1: wanted"),
        ):
            page.fill(f"#set-{name}", value)
            page.locator(f"#set-{name}").blur()
            assert page.locator(f"#wrong-{name}").text_content().startswith(words), name
            assert page.get_attribute(f"#set-{name}", "aria-invalid") == "true"
        page.fill("#set-temperature", "0.72")  # between two steps of its arrows
        page.fill("#set-grammar", "refused")
        say(page, "hello")
        assert page.locator("#wrong-temperature").text_content() == ""
        assert script.bodies[0]["temperature"] == 0.72
        assert not {"top_k", "response_format", "tools"} & set(script.bodies[0])
        assert page.locator("#wrong-grammar").text_content().endswith("wanted a rule root")


def test_enter_begins_a_line_on_a_phone(chromium: Browser) -> None:
    script = Script([[*pieces("x"), *END]])
    with opened(chromium, script, (390, 800)) as page:
        devtools = page.context.new_cdp_session(page)
        touch = {"enabled": True, "maxTouchPoints": 1}
        devtools.send("Emulation.setTouchEmulationEnabled", touch)
        try:
            page.reload()
            page.wait_for_selector("#about:has-text('scripted')")
            assert page.get_attribute("#message", "placeholder") == "Message"
            page.fill("#message", "one")
            page.keyboard.press("Enter")
            page.keyboard.type("two")
            assert page.input_value("#message") == "one\ntwo"
            page.click("#send")
            page.wait_for_selector("article.assistant footer")
            assert script.bodies[0]["messages"][0]["content"] == "one\ntwo"
        finally:
            devtools.send("Emulation.setTouchEmulationEnabled", {"enabled": False})
            devtools.detach()


def test_the_command_that_the_engines_view_shows_runs(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, Script([])) as page:
        command = page.evaluate(
            """import("/page/engine.js").then(({ EngineView }) => {
              const view = new EngineView(document.body);
              view.model = "it's scripted.gguf";
              return view.command.textContent; })"""
        )
    assert command.startswith("graphml profile 'it'")
    tiny_model.write(tmp_path / "it's scripted.gguf", n_ctx=4096)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "steps.json").read_text())
