"""One reader of JSON: whatever a file holds, plain data or one line that names the file."""

import json

import pytest

from chacal._files import MOST_NESTED, parse_json, read_json
from chacal._plain import member

SURROGATE = '{"a": "\\ud800"}'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"a": 1', "is not JSON"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"\x00" * 100, "is not JSON"),
        (b"[" * 10_000 + b"]" * 10_000, "is nested more than 64 deep"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "is nested more than 64 deep"),
        (b"[" * 200 + b"]" * 200, "is nested more than 64 deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a whole number of 5000 digits; expected at most 64"),
        (b'{"a": 9223372036854775808}', "a whole number of 19 digits"),
        (SURROGATE.encode(), "is not UTF-8 text"),
    ],
)
def test_what_is_no_json_is_told_with_its_file(tmp_path, content, why):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why) as told:
        read_json(file)
    assert str(told.value).startswith(str(file))
    assert len(str(told.value).splitlines()) == 1


def test_a_folder_or_nothing_in_a_files_place(tmp_path):
    with pytest.raises(ValueError, match=r"x\.json is not there"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").mkdir()
    with pytest.raises(ValueError, match=r"x\.json is a folder; expected a JSON file"):
        read_json(tmp_path / "x.json")


def test_what_is_json_is_read_as_it_is(tmp_path):
    data = {"a": [1, -(2**63), 2**63 - 1, 0.5, None, True], "γ": "\\u", "é": {}}
    assert parse_json(json.dumps(data), "it") == data
    assert parse_json(json.dumps(data, ensure_ascii=False).encode(), "it") == data
    # what some editors put before a text means nothing
    assert parse_json(b"\xef\xbb\xbf[1]", "it") == [1]
    deep = "[" * MOST_NESTED + "]" * MOST_NESTED
    assert parse_json(deep, "it") == json.loads(deep)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (5, "metrics.jsonl is 5; expected an object"),
        ({}, "metrics.jsonl: step is missing"),
        ({"step": "x"}, "metrics.jsonl: step is 'x'; expected int"),
        ({"step": True}, "metrics.jsonl: step is True; expected int"),
    ],
)
def test_a_field_by_its_name_and_type(data, why):
    with pytest.raises(ValueError, match=why):
        member(data, "step", int, "metrics.jsonl")
    assert member({"step": 3, "more": None}, "step", int, "it") == 3
