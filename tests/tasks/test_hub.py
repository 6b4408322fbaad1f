"""Sources of text: their names, and what was streamed once is kept."""

import pytest

from chacal.tasks.hub import HubText, local_text, parse_source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("some/file.txt", None),
        ("hub:a/b:train", HubText("a/b", None, "train", 0, None)),
        ("hub:a/b@c-1:test:500", HubText("a/b", "c-1", "test", 0, 500)),
        ("hub:a/b:train:20-8000", HubText("a/b", None, "train", 20, 8000)),
    ],
)
def test_sources(source, expected):
    assert parse_source(source) == expected


@pytest.mark.parametrize("source", ["hub:", "hub:a/b", "hub:a/b:train:x", "hub:a/b:train:1-"])
def test_wrong_sources(source):
    with pytest.raises(ValueError, match="is no source; expected hub:NAME"):
        parse_source(source)


def test_what_was_streamed_is_not_streamed_again(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path))
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = ["one", "two\n", "three"]
    (folder / "train.jsonl").write_text(
        "".join(f'{{"text": {r!r}}}\n'.replace("'", '"') for r in rows)
    )
    path = local_text(f"hub:{folder}:train")
    assert path.read_text() == "one\ntwo\nthree\n"
    (folder / "train.jsonl").unlink()
    assert local_text(f"hub:{folder}:train") == path


def test_no_network_is_one_message(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"could not be had from the Hugging Face hub.*--train-file"
    ):
        local_text("hub:chacal-tests/no-such-data:train")
    assert not list(tmp_path.rglob("*.txt"))
