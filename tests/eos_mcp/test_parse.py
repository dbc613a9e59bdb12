"""Words of a command line: globals anywhere, both forms of values, terminators, files, and which mistake is
reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp import catalog
from eos_mcp.cli.parse import Parsed, check_request_id, parse


def runtime(*words: str) -> Parsed:
    return parse(words, "runtime", catalog.RUNTIME)


def manager(*words: str) -> Parsed:
    return parse(words, "manager", catalog.MANAGER)


def mistake(parsed: Parsed) -> str:
    assert parsed.error is not None and parsed.error.kind == "invalid_request"
    return parsed.error.message


@pytest.mark.parametrize(
    "words",
    [
        ("--sandbox-id", "s", "file_read", "--path", "a"),
        ("file_read", "--sandbox-id", "s", "--path", "a"),
        ("file_read", "--path", "a", "--sandbox-id", "s"),
        ("file_read", "--path=a", "--sandbox-id=s"),
    ],
)
def test_globals_may_stand_anywhere(words: tuple[str, ...]) -> None:
    parsed = runtime(*words)
    assert parsed.error is None
    assert (parsed.name, parsed.options, parsed.args) == ("file_read", {"sandbox_id": "s"}, {"path": "a"})


def test_a_flags_value_is_the_next_word_whatever_it_looks_like() -> None:
    assert runtime("file_read", "--path", "--sandbox-id", "--sandbox-id", "s").args == {
        "path": "--sandbox-id"
    }
    assert runtime("--request-id", "-x", "list_drafts").options == {"request_id": "-x"}
    assert runtime("file_write", "--path", "a", "--content", "--help").args["content"] == "--help"
    assert runtime("file_write", "--path", "a", "--content=").args["content"] == ""


def test_in_manager_and_observability_the_sandbox_is_an_argument_of_the_operation() -> None:
    assert manager("inspect_sandbox", "--sandbox-id", "s").args == {"sandbox_id": "s"}
    assert parse(("snapshot", "--sandbox-id", "s"), "observability", catalog.OBSERVABILITY).args == {
        "sandbox_id": "s"
    }


def test_a_global_given_twice_is_refused_also_by_its_other_name() -> None:
    with pytest.raises(OperationError, match="more than once"):
        manager("--gateway-endpoint", "a:1", "list_sandboxes", "--gateway-socket", "b:2")


def test_an_argument_given_twice_is_refused_also_by_its_other_name() -> None:
    assert "more than once" in mistake(
        manager("create_sandbox", "--image", "i", "--workspace-root", "/a", "--workspace-bind-root", "/b")
    )
    assert "more than once" in mistake(
        runtime("file_write", "--path", "a", "--content", "x", "--content-file", "/dev/null")
    )


def test_positionals_are_taken_as_they_are() -> None:
    for text in ("\x03", "\x04", "a\nb\n", "ls -la", "x" * 98304, "-", ""):
        assert runtime("exec_command", text).args["cmd"] == text
    assert runtime("exec_command", "--", "--version").args["cmd"] == "--version"
    assert runtime("exec_command", "--timeout-ms", "5", "--", "--help").args == {
        "timeout_ms": 5,
        "cmd": "--help",
    }
    assert runtime("write_command_stdin", "--command-session-id", "c", "-h").args["stdin"] == "-h"


def test_one_positional_too_many_names_operation_and_word() -> None:
    assert (
        mistake(runtime("exec_command", "ls", "-la"))
        == "unexpected positional argument for exec_command: -la; COMMAND is one word: quote all of it"
    )
    assert mistake(manager("prune", "--dry-run", "false")).endswith(
        "prune: false; write the value of a flag after `=`, as in --flag=false"
    )


def test_missing_arguments_are_named_by_flag_or_label() -> None:
    assert (
        mistake(runtime("exec_command"))
        == "COMMAND is required for exec_command: The command, run by sh or bash."
    )
    assert mistake(runtime("file_read")).startswith("--path is required for file_read: ")
    missing = mistake(manager("create_sandbox", "--image", "i"))
    assert missing.startswith(
        "--workspace-bind-root is required for create_sandbox (or --workspace-root): Absolute host "
        "directory to copy"
    )
    assert "requires a value" in mistake(runtime("file_read", "--path"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("file_read", "--path", "a", "--offset", "-1"), "--offset"),
        (("file_read", "--path", "a", "--offset", "1.0"), "--offset"),
        (("file_read", "--path", "a", "--offset", str(2**64)), "--offset"),
        (("file_read", "--path", "a", "--offset", "9" * 5000), "--offset"),
        (("destroy_workspace_session", "--workspace-session-id", "w", "--grace-s", "nan"), "--grace-s"),
        (("file_edit", "--path", "a", "--edits", "{}"), "--edits"),
        (("file_edit", "--path", "a", "--edits", "["), "--edits"),
        (("exec_command", "x", "--tty=maybe"), "--tty"),
        (("exec_command", "x", "--nope"), "--nope"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_flag(words: tuple[str, ...], said: str) -> None:
    assert said in mistake(runtime(*words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("write_command_stdin", "--command-session-id", "c", "--stdin", "x"),
            "TEXT takes no flag, or comes from --stdin-file PATH",
        ),
        (("write_command_stdin", "--command-session-id", "c", "--text", "x"), "TEXT takes no flag"),
        (("exec_command", "--cmd", "ls"), "COMMAND takes no flag: exec_command … COMMAND"),
        (("exec_command", "--command", "ls"), "COMMAND takes no flag"),
        (("exec_command", "--timeout", "5", "ls"), "did you mean --timeout-ms?"),
        (("exec_command", "--workspace-session", "5", "ls"), "did you mean --workspace-session-id?"),
        (("file_read", "--paht", "a"), "did you mean --path?"),
        (("exec_command", "--zzz", "ls"), "`help exec_command` lists them"),
    ],
)
def test_an_unknown_option_says_what_may_have_been_meant(words: tuple[str, ...], said: str) -> None:
    assert said in mistake(runtime(*words))


def test_one_value_where_an_array_belongs_is_shown_as_the_array_and_eos_takes_several() -> None:
    said = mistake(runtime("exec_command", "--env", "A=1 b", "true"))
    text = """--env must be a JSON array, as in --env '["A=1 b"]' """
    assert said.startswith(text + "(`eos` also takes --env A=1 b, more than once)")
    assert "as in" not in mistake(runtime("exec_command", "--env", "[", "true")), (
        "who began an array knows the form"
    )
    one_by_one = parse(
        ("exec_command", "--env", "A=1", "--env", "B=2", "true"), "runtime", catalog.RUNTIME, repeated=True
    )
    assert one_by_one.args["env"] == ["A=1", "B=2"]


def test_leading_zeros_make_no_number_larger() -> None:
    assert runtime("file_read", "--path", "a", "--offset", "0" * 5000 + "7").args["offset"] == 7
    assert runtime("file_read", "--path", "a", "--offset", "000").args["offset"] == 0


@pytest.mark.parametrize("edits", ["[NaN]", "[1e400]", '[{"old_string":-Infinity}]', "[" * 300 + "]" * 300])
def test_an_array_that_no_request_can_carry_is_refused_here(edits: str) -> None:
    parsed = runtime("file_edit", "--path", "a", "--edits", edits)
    assert parsed.operation is not None and parsed.error is None
    with pytest.raises(OperationError) as caught:
        catalog.build(parsed.operation, parsed.args, selector="s", bounds=False)
    assert (caught.value.kind, caught.value.details["reason"]) == ("invalid_request", "wrong_type")


def test_a_boolean_flag_takes_no_following_word() -> None:
    assert runtime("exec_command", "--split-output", "ls").args == {"split_output": True, "cmd": "ls"}
    assert runtime("exec_command", "--tty=false", "ls").args == {"tty": False, "cmd": "ls"}


def test_long_texts_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "content"
    file.write_bytes("é\r\nx".encode())
    assert runtime("file_write", "--path", "a", "--content-file", str(file)).args["content"] == "é\r\nx"
    file.write_text('[{"old_string":"a","new_string":"b"}]')
    assert runtime("file_edit", "--path", "a", f"--edits-file={file}").args["edits"] == [
        {"old_string": "a", "new_string": "b"}
    ]
    assert (
        runtime("write_command_stdin", "--command-session-id", "c", "--stdin-file", str(file))
        .args["stdin"]
        .startswith("[")
    )
    file.write_bytes(b"\xff")
    assert "not valid UTF-8" in mistake(runtime("file_write", "--path", "a", "--content-file", str(file)))
    assert "No such file" in mistake(
        runtime("file_write", "--path", "a", "--content-file", str(tmp_path / "none"))
    )


def test_help_is_recognised_before_and_after_the_operation() -> None:
    assert runtime("--help").options == {"help": "true"}
    assert runtime("exec_command", "--help").options == {"help": "true"}
    assert runtime("exec_command", "-h").options == {"help": "true"}
    assert runtime("help", "exec_command").words == ("exec_command",)


def test_of_an_unknown_operation_nothing_is_judged_but_the_globals() -> None:
    parsed = manager("--gateway-auth-token", "t", "nope", "--x", "y")
    assert (parsed.name, parsed.operation, parsed.error) == ("nope", None, None)


def test_request_ids_have_the_contracts_grammar() -> None:
    for good in ("a", "-x", "A.b_c:d-9", "x" * 128):
        check_request_id(good)
    for bad in ("", "a b", "x" * 129, "é", "a\n"):
        with pytest.raises(OperationError, match=r"--request-id.*1-128"):
            check_request_id(bad)


def test_the_umbrella_takes_an_array_of_strings_one_by_one() -> None:
    words = ("exec_command", "--env", "A=1", "--env=B=[2]", "make")
    assert parse(words, "runtime", catalog.RUNTIME, repeated=True).args == {
        "env": ["A=1", "B=[2]"],
        "cmd": "make",
    }
    assert "--env" in mistake(runtime(*words))
    assert parse(
        ("exec_command", "--env", '["A=1"]', "make"), "runtime", catalog.RUNTIME, repeated=True
    ).args["env"] == ["A=1"]
