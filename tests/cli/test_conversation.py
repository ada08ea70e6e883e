"""What `graphml chat` is made of: commands, settings, files of messages, the prompt's keys, history, Tab."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner, Result

from graphml import UsageError
from graphml.cli.conversation import input_history
from graphml.cli.conversation.commands import COMMANDS, completions, parse, read_messages, write_messages
from graphml.cli.conversation.edited_prompt import EditedPrompt
from graphml.cli.conversation.input_history import InputHistory
from graphml.cli.conversation.line_input import asked, tidy
from graphml.cli.main import app
from tests import tiny_model
from tests.cli.scripted_chat import call_of, scripted_options
from tests.looped import looped
from tests.mcp_server import by_stdio


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def chat(path: Path, *lines: str, code: int = 0, options: tuple[str, ...] = ()) -> Result:
    limit = [] if "-n" in options else ["-n", "3"]
    arguments = ["chat", str(path), *limit, "--backend", "reference", *options]
    result = CliRunner().invoke(app, arguments, input="\n".join(lines))
    assert result.exit_code == code, result.output
    return result


def test_tools_are_called_without_a_question_where_that_is_said(path: Path, tmp_path: Path) -> None:
    long = tiny_model.write(tmp_path / "tiny.gguf", n_ctx=1 << 12)
    options = scripted_options(tmp_path, long, "Let me see." + call_of(4), "It is 8.")
    refused = chat(long, "go", code=2, options=tuple(options))
    assert "--tools: wanted --yes, or a terminal to ask on before each call" in refused.stderr
    assert not (tmp_path / "calls.txt").exists()
    done = chat(long, "go", options=(*options, "--yes"))
    assert done.stdout == "Let me see.\nIt is 8.\n"
    assert 'calls double({"x": 4})' in done.stderr
    assert (tmp_path / "calls.txt").read_text() == "4;"
    (tmp_path / "none.py").write_text("_f = len\n")
    none = chat(long, "go", code=2, options=("--tools", str(tmp_path / "none.py"), "-y"))
    assert "none.py: wanted functions whose names do not begin with _" in none.stderr


def test_tools_of_a_server_are_called_where_that_is_said(path: Path, tmp_path: Path) -> None:
    long, calls = tiny_model.write(tmp_path / "tiny.gguf", n_ctx=1 << 12), tmp_path / "calls.txt"
    options = scripted_options(tmp_path, long, call_of(4, "own__double"), "It is 8.")
    file = by_stdio(tmp_path / "mcp.json", env={"CALLS": str(calls)})
    refused = chat(long, "go", code=2, options=("--mcp", str(file)))
    assert "--mcp: wanted --yes, or a terminal to ask on before each call" in refused.stderr
    done = chat(long, "go", "/tools", options=(*options, "--mcp", str(file), "--yes"))
    assert done.stdout == "It is 8.\n"
    assert 'calls own__double({"x": 4})' in done.stderr
    assert "double         Double a number.\nown__double    Double a number.\n" in done.stderr
    assert calls.read_text() == "4;"
    file.write_text('{"mcpServers": {"x": {}}}')
    wrong = chat(long, "go", code=2, options=("--mcp", str(file), "--yes"))
    assert "mcp.json: mcpServers.x: wanted one of the keys command and url" in wrong.stderr
    assert "there are none; the options --tools and --mcp" in chat(path, "/tools", code=1).stderr


# The commands, line by line.


def test_the_help_names_every_command(path: Path) -> None:
    done = chat(path, "/help")
    assert done.stdout == ""
    assert [line.split()[0] for line in done.stderr.splitlines()] == [one.name for one in COMMANDS]
    assert "begins anew, with the same system message; also /clear, /new\n" in done.stderr


def test_messages_are_saved_and_loaded(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "a talk.json"
    done = chat(path, f"/save {file}", "/system be kind", "hello", f"/save {file}", "/undo", "/save", code=1)
    assert "/save: wanted messages" in done.stderr
    assert "3 messages saved to" in done.stderr
    assert json.loads(file.read_text(encoding="utf-8")) == [{"role": "system", "content": "be kind"}]
    file.write_text('{"model": "x", "messages": [{"role": "user", "content": "hello \\ud83d\\ude00"}]}')
    done = chat(path, "/load", f"/load {file}", "/system", "/history", "/regenerate", "/save", code=1)
    assert "/load: wanted the name of a file" in done.stderr
    assert "the last one has no answer: /regenerate answers it" in done.stderr
    assert "there is no system message" in done.stderr
    assert done.stdout.startswith("user: hello \N{GRINNING FACE}\n")
    assert [message["role"] for message in read_messages(file)] == ["user", "assistant"]
    assert "\N{GRINNING FACE}" in file.read_text(encoding="utf-8")


def test_the_system_message_is_shown_changed_and_removed(path: Path) -> None:
    done = chat(
        path, "/system", "/system  be kind ", "/system", '/system ""', "/system", "/reset", "/history"
    )
    assert done.stdout == "system: be kind\n"
    assert done.stderr.count("there is no system message") == 2


def test_answers_are_taken_back_and_given_again(path: Path) -> None:
    lines = ["hello", "/regenerate", "/history", "/undo", "/history", "world", "/undo", "/undo"]
    done = chat(path, *lines, code=1, options=("--temp", "0"))
    first, again, *history, _ = done.stdout.split("\n")[:-1]
    assert first == again  # greedy
    assert history == ["user: hello", f"assistant: {first}"]
    assert "taken back: hello" in done.stderr
    assert "undo: wanted a message of the user" in done.stderr
    assert "regenerate: wanted a message of the user" in chat(path, "/regenerate", code=1).stderr


def test_commands_of_other_programs_are_understood(path: Path) -> None:
    greedy = ("--temp", "0")
    shown = chat(path, "hello", "/regen", "/retry", "/q", "never", options=greedy).stdout.splitlines()
    assert len(shown) == 3
    done = chat(path, "/set system be kind", "/system", "/set parameter temperature 0.5", "/new", "/history")
    assert done.stdout == "system: be kind\n" * 2
    assert "temperature  0.5 (/set)" in done.stderr
    said = chat(path, "/retri", "/regnerate", "/xyzzyx", code=1).stderr
    assert "unknown command /retri: did you mean /retry?" in said
    assert "unknown command /regnerate: did you mean /regenerate?" in said
    assert "unknown command /xyzzyx: /help lists" in said


DEEP = "[" * 2000  # more lists in each other than Python's reader of JSON can follow


def test_the_model_and_its_context_are_shown(path: Path) -> None:
    done = chat(path, "/info", "hello", "/show info", "/show template", code=1)
    rows = [line.partition("  ") for line in done.stderr.splitlines()]
    values = [(name, value.strip()) for name, _, value in rows]
    assert values[:5] == [
        ("model", str(path)), ("architecture", "llama"), ("parameters", values[2][1]),
        ("quantization", values[3][1]), ("backend", "reference"),
    ]  # fmt: skip
    used = [value for name, value in values if name == "context"]
    assert used[0].startswith("0 of 160 tokens")
    assert int(used[1].split()[0]) > 0
    assert sum(name == "temperature" for name, _ in values) == 2
    assert "/show: wanted info or nothing, got 'template'" in done.stderr


def test_settings_are_shown_and_changed(path: Path) -> None:
    changes = {
        "temperature 0.5": ("temperature", "0.5"),
        "temp=0.7": ("temperature", "0.7"),
        "temp default": ("temperature", "0.8"),
        "--top-k 40": ("top_k", "40"),
        "seed 7": ("seed", "7"),
        "max_tokens 1": ("max_tokens", "1"),
        "max_tokens -1": ("max_tokens", "-1"),
        'stop ["a b", "c"]': ("stop", '["a b", "c"]'),
        'stop "\\n"': ("stop", '["\\n"]'),
        "stop END OF IT": ("stop", '["END OF IT"]'),
        "stop a=b c": ("stop", '["a=b c"]'),
        "stop = =": ("stop", '["="]'),
        f"stop {DEEP}": ("stop", f'["{DEEP}"]'),
        "stop []": ("stop", "[]"),
        "logit_bias 5-inf": ("logit_bias", '["5-inf"]'),
        'logit-bias ["5+1.5", "6-2"]': ("logit_bias", '["5+1.5", "6-2.0"]'),
        "logit_bias default": ("logit_bias", "[]"),
        "stop_token 3": ("stop_tokens", "[3]"),
        "stop_tokens [4, 3]": ("stop_tokens", "[3, 4]"),
        "min_keep 2": ("min_keep", "2"),
    }
    done = chat(path, *(f"/set {change}" for change in changes))
    for line, (name, value) in zip(done.stderr.splitlines(), changes.values(), strict=True):
        assert line.startswith(f"{name}  {value} ")
    shown = chat(path, "/set all", options=("--temp", "0.25", "--seed", "3")).stderr.splitlines()
    values = {line.split()[0]: line.split()[1] for line in shown}
    assert values["temperature"] == "0.25"
    assert (values["seed"], values["max_tokens"], values["repeat_last_n"]) == ("3", "3", "64")


def test_settings_that_have_their_defaults_are_shown_when_asked(path: Path) -> None:
    shown = chat(path, "/set top_k 3", "/set", options=("--temp", "0.25")).stderr.splitlines()[1:]
    every = chat(path, "/set all").stderr.splitlines()
    names = [line.split()[0] for line in shown[:-1] if line[0] != " "]
    assert {"seed", "max_tokens", "temperature", "top_k"} <= set(names)
    assert "repeat_last_n" not in names
    n_more = len([line for line in every if line[0] != " "]) - len(names)
    assert shown[-1] == f"{n_more} more have their defaults: /set all shows them"
    assert chat(path, "/info").stderr.splitlines()[-1].endswith("/set all shows them")
    assert "no such setting" in chat(path, "/set all 3", code=1).stderr


def test_changed_settings_change_the_answers(path: Path) -> None:
    script = ["/set seed 5", "/set temperature 2", "hello", "/reset", "/set seed 5", "hello"]
    one, two = chat(path, *script).stdout.splitlines()
    assert one == two
    three, _ = chat(path, "/set max_tokens 1", "hello", "/undo", "/set max_tokens 9", "hello").stdout.split(
        "\n"
    )[:2]
    assert len(three) <= 2
    assert one != chat(path, "hello").stdout.splitlines()[0]


TEMPERATURES = "a finite number of at least 0 and at most 3.4e+38"
WRONG = {
    "/set temperature hot": f"temperature: wanted {TEMPERATURES}, got 'hot'",
    "/set temperature nan": f"temperature: wanted {TEMPERATURES}, got nan",
    "/set top_p 2": "top_p: wanted a number from 0 to 1, got 2.0",
    "/set top_k 1.5": "top_k: wanted a whole number of at least 0, got '1.5'",
    "/set seed -2": "seed: wanted a whole number of at least -1, got '-2'",
    "/set max_tokens many": "max_tokens: wanted a whole number of at least -1, got 'many'",
    '/set stop ["a", 1]': "stop: wanted strings that are not empty, got 1",
    "/set logit_bias 5": "logit_bias: wanted ID+X or ID-X, such as 15043-inf; got '5'",
    "/set logit_bias [5]": "logit_bias: wanted ID+X or ID-X, such as 15043-inf; got 5",
    "/set stop_tokens many": "stop_tokens: wanted a collection of token ids, got 'many'",
    "/set stop_tokens [-1]": "stop_tokens: wanted a whole number of at least 0, got -1",
    "/set temprature 1": "/set temprature: no such setting (did you mean temperature or dynatemp_range?)",
    "/set =1": "/set : no such setting (known: temperature, dynatemp_range, dynatemp_exponent, top_k, top_p, "
    "min_p, typical_p, min_keep)",
    "/sytem be kind": "unknown command /sytem: did you mean /system? /help lists the commands",
    "/": "unknown command /: /help lists the commands",
    "/undo 3": "/undo: wanted nothing after it, got '3'",
    "/stats maybe": "/stats: wanted on, off or nothing, got 'maybe'",
    "/load nothere.gguf": "/load nothere.gguf: no such file; /load reads a saved conversation; for another "
    "model leave and run `graphml chat NAME`",
    "/load ~nobody-of-this-name/x": "/load ~nobody-of-this-name/x: Could not determine home directory.",
}


def test_wrong_commands_are_named_and_the_conversation_goes_on(path: Path) -> None:
    done = chat(path, *WRONG, "hello", code=1)
    assert done.stderr.splitlines() == [f"graphml: {says}" for says in WRONG.values()]
    assert len(done.stdout) > 1


@looped("text", ["/usr/bin/env: what is it?", "/* a comment */", "// so too", "/what\nis this"])
def test_what_begins_with_a_slash_may_be_a_message(text: str) -> None:
    assert parse(text) == (None, "")


def test_a_command_may_hold_several_lines() -> None:
    command, argument = parse("/System be kind\nand brief")
    assert command is not None
    assert (command.name, argument) == ("/system", "be kind\nand brief")


def test_figures_follow_the_answers_where_they_are_asked_for(path: Path) -> None:
    assert "answer" not in chat(path, "hello").stderr
    (line,) = chat(path, "hello", options=("--stats",)).stderr.splitlines()
    assert "answer 3 tokens, " in line
    assert line.endswith(" of 160")
    shown = chat(path, "hello", "/stats", "hello", "/stats off", "hello").stderr
    assert shown.count("answer 3 tokens, ") == 2


# Files of messages.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "cannot be read as JSON"),
        ("[" * 100000, "cannot be read as JSON"),
        ('{"role": "user"}', "messages: wanted a list of messages, got an object"),
        ('[{"role": "x", "content": ""}]', r"messages\[0\].role: wanted"),
        (b"\xff\xfe", "cannot be read as JSON"),
    ],
)
def test_a_file_without_messages_is_told_and_not_replaced(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    file = tmp_path / "notes"
    content = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"notes: {says}"):
        read_messages(file)
    with pytest.raises(UsageError, match="notes: is there already and holds no messages"):
        write_messages(file, [])
    assert file.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    import resource  # not on Windows

    file, link = tmp_path / "talk.json", tmp_path / "link.json"
    link.symlink_to(file)
    few, many = [{"role": "user", "content": "hello"}], [{"role": "user", "content": "hello " * 10000}]
    write_messages(file, few)
    file.chmod(0o640)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # the disk is full in the middle
    try:
        with pytest.raises(UsageError, match="cannot be written: File too large"):
            write_messages(file, many)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_messages(file) == few
    write_messages(link, many)
    assert read_messages(file) == many
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert {one.name for one in tmp_path.iterdir()} == {"talk.json", "link.json"}


def test_any_text_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    for text, kept in (("\u2028\0\x1b", "\u2028\0\x1b"), ("a\ud800", "a?")):
        write_messages(file, [{"role": "user", "content": text}])
        assert read_messages(file) == [{"role": "user", "content": kept}]


def test_places_that_are_no_files_are_told(tmp_path: Path) -> None:
    for place, reading, writing in (
        (tmp_path, "a directory", "is there already"),
        (tmp_path / "no" / "file", "No such file", "cannot be written: No such file or directory"),
        (
            tmp_path / ("x" * 300),
            "cannot be read as JSON: File name too long",
            "cannot be written: File name too long",
        ),
        (Path("a\0b"), "null byte", "cannot be written"),
    ):
        with pytest.raises(UsageError, match=reading):
            read_messages(place)
        with pytest.raises(UsageError, match=writing):
            write_messages(place, [])


# The prompt.


@pytest.fixture
def history(tmp_path: Path) -> InputHistory:
    return InputHistory(tmp_path / "state" / "graphml" / "history")


def typed(keys: str, history: InputHistory) -> list[str]:
    """The inputs that keys give, up to Ctrl-D."""
    with create_pipe_input() as pipe:
        pipe.send_text(keys + "\x04")
        prompt = EditedPrompt(sys.stdout, completions, history, pipe, DummyOutput())
        return list(asked(prompt.read, prompt.typed))


PASTE = "\x1b[200~{}\x1b[201~"
ALT_ENTER, UP, CTRL_C = "\x1b\r", "\x1b[A", "\x03"


@pytest.mark.parametrize(
    ("keys", "inputs"),
    [
        ("hello\r\rworld\r", ["hello", "", "world"]),
        (PASTE.format("one\r\n\ttwo\n/exit\n") + "\r", ["one\n\ttwo\n/exit"]),
        (PASTE.format("    first\n  second") + " and more\r", ["    first\n  second and more"]),
        (f"one{ALT_ENTER}two\r", ["one\ntwo"]),
        ("one\\\rtwo\r", ["one\ntwo"]),
        ("a\\\x1b[D\r", ["a\\"]),  # the cursor is not at the end
        (f"half{CTRL_C}whole\r", ["whole"]),
        (f"half{CTRL_C}half{CTRL_C}whole\r", ["whole"]),
        (f"hello\r{CTRL_C}world\r{CTRL_C}again\r", ["hello", "world", "again"]),
        (f"hello\r{CTRL_C}{CTRL_C}never\r", ["hello"]),
        ("/und\t\r", ["/undo"]),
        ("/se\t temp\t1\r", ["/set  temp1"]),  # two spaces: nothing to complete
        ("/se\ttemp\t1\r", ["/set temperature 1"]),
        ("no /und\t\r", ["no /und"]),
        ("\N{GRINNING FACE}\u00fc\r", ["\N{GRINNING FACE}\u00fc"]),
    ],
)
def test_keys_become_inputs(keys: str, inputs: list[str], history: InputHistory) -> None:
    assert typed(keys, history) == inputs


def test_bytes_that_are_no_text_and_spaces_around_it_are_taken_off() -> None:
    assert tidy(" a\udcffb \n") == "a\ufffdb"


def test_earlier_inputs_come_back(history: InputHistory, tmp_path: Path) -> None:
    several = PASTE.format("one\ntwo") + "\r"
    assert typed(f"{several}last\rlast\r", history) == ["one\ntwo", "last", "last"]
    later = InputHistory(tmp_path / "state" / "graphml" / "history")
    assert later.inputs == ["one\ntwo", "last"]
    assert typed(f"{UP}{UP}{UP}\r", later) == ["one\ntwo"]
    assert typed("\x12on\r\r", later) == ["one\ntwo"]  # Ctrl-R: a search


def test_the_history_is_for_the_user_alone(history: InputHistory, tmp_path: Path) -> None:
    file = tmp_path / "state" / "graphml" / "history"
    history.append("secret")
    if sys.platform != "win32":
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o644)
    history.append("another")
    if sys.platform != "win32":
        assert file.stat().st_mode & 0o777 == 0o600


def test_the_history_keeps_the_latest_and_survives_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_history, "MOST", 3)
    file = tmp_path / "history"
    file.write_bytes(b'"one"\n\xff\xff\n{"a": 1}\n"two"\n' + b"[" * 100000 + b"\n")
    history = InputHistory(file)
    assert history.inputs == ["one", "two"]
    for i in range(5):
        history.append(f"{i}")
    history.append("x" * (input_history.LONGEST + 1))
    assert InputHistory(file).inputs == ["2", "3", "4"]
    assert file.read_text() == '"2"\n"3"\n"4"\n'


def test_a_history_that_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = InputHistory(tmp_path / "file" / "history")
    history.append("hello")
    assert history.inputs == ["hello"]
    assert InputHistory(tmp_path).inputs == []


def test_tab_offers_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a talk.json").write_text("")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in").write_text("")
    assert completions("/") == [one.name + (" " if one.takes else "") for one in COMMANDS]
    assert completions("/s") == ["/system ", "/save ", "/set ", "/show ", "/stats "]
    assert completions("/load ") == ["/load a talk.json", "/load folder/"]
    assert completions("/load a t") == ["/load a talk.json"]
    assert completions("/save folder/") == ["/save folder/in"]
    assert completions("/save .") == ["/save .hidden"]
    assert completions("/set repeat_l") == ["/set repeat_last_n "]
    assert completions("/stats o") == ["/stats on", "/stats off"]
    for nothing in ("", "hello", "/undo x", "/load nowhere/", "/load \0/", "/load ~nobody-of-this-name/"):
        assert completions(nothing) == []


def reading(*given: object) -> Callable[[], str]:
    left: Iterator[object] = iter(given)

    def read() -> str:
        one = next(left, EOFError())
        if isinstance(one, BaseException):
            raise one
        return str(one)

    return read


def test_where_half_typed_lines_cannot_be_seen_ctrl_c_ends_at_the_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_off = KeyboardInterrupt()
    inputs = asked(reading(break_off, "one", break_off, "two", break_off, break_off, "never"), lambda: False)
    assert list(inputs) == ["one", "two"]
    assert capsys.readouterr().err.count("Ctrl-C once more") == 3


def test_a_file_goes_with_the_next_message(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.txt").write_text("world")
    done = chat(path, f"/read {tmp_path / 'a.txt'}", f"/read {tmp_path / 'b.txt'}", "hi", "ho", "/history")
    assert "5 characters of" in done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("user:") or line in ("world", "hi")]
    assert said == ["user: hello", "world", "hi", "user: ho"]
    wrong = chat(path, f"/read {tmp_path / 'none.txt'}", "/read", code=1).stderr
    assert "none.txt: " in wrong
    assert "/read: wanted the name of a text file" in wrong


def test_a_file_to_read_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    assert completions("/read no") == ["/read notes.txt"]
