"""A folder of passages and questions: what is read, and every line that cannot be, by file and number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import InvalidInput
from agentformer.evaluation import dataset as reading
from agentformer.evaluation.dataset import Dataset, Passage, Question, read_dataset, sampled


def folder(path: Path, corpus: Any, queries: Any) -> Path:
    """Files of these rows, or of these bytes as they are."""
    for name, rows in (("corpus", corpus), ("queries", queries)):
        data = rows if isinstance(rows, bytes) else b"\n".join(json.dumps(row).encode() for row in rows)
        (path / f"{name}.jsonl").write_bytes(data)
    return path


CORPUS = [{"id": "a", "text": "Keys."}, {"id": "b", "text": "Boats.", "meta": {"title": "Sea"}}]
QUERIES = [{"id": "q", "text": "Where?", "relevant": ["b"], "meta": {"category": "x"}}]


def test_passages_and_questions_are_read_in_their_order(tmp_path: Path) -> None:
    read = read_dataset(folder(tmp_path, CORPUS, QUERIES))
    assert read == Dataset(
        tmp_path.name,
        (Passage("a", "Keys."), Passage("b", "Boats.", {"title": "Sea"})),
        (Question("q", "Where?", ("b",), {"category": "x"}),),
    )


def test_a_mark_of_byte_order_dos_line_ends_empty_lines_and_numbers_for_ids_are_nothing_special(tmp_path: Path) -> None:
    corpus = b'\xef\xbb\xbf{"id": 7, "text": "a\xe2\x80\xa8b"}\r\n\r\n{"id": "8", "text": "c", "meta": null}\r\n'
    read = read_dataset(folder(tmp_path, corpus, [{"id": 1, "text": "?", "relevant": [7, "7"]}]))
    assert [(each.id, each.text) for each in read.passages] == [("7", "a\u2028b"), ("8", "c")]
    assert read.questions == (Question("1", "?", ("7",)),)


def test_questions_without_an_answer_are_kept_apart(tmp_path: Path) -> None:
    queries = [*QUERIES, {"id": "n", "text": "Nowhere?"}, {"id": "e", "text": "Nor here?", "relevant": []}]
    read = read_dataset(folder(tmp_path, CORPUS, queries))
    assert [each.id for each in read.answerable] == ["q"] and len(read.questions) == 3


def test_ids_that_the_corpus_has_not_are_left_out_and_counted(tmp_path: Path) -> None:
    queries = [{"id": "1", "text": "?", "relevant": ["a", "gone"]}, {"id": "2", "text": "?", "relevant": ["lost"]}]
    read = read_dataset(folder(tmp_path, CORPUS, queries))
    assert [each.relevant for each in read.questions] == [("a",), ()]
    assert read.notes == ("2 relevant ids of queries.jsonl are not in corpus.jsonl and were ignored, such as 'gone'",)
    with pytest.raises(InvalidInput, match=r"has none of the ids that"):
        read_dataset(folder(tmp_path, CORPUS, [{"id": "2", "text": "?", "relevant": ["lost"]}]))


def test_empty_passages_are_kept_and_told(tmp_path: Path) -> None:
    read = read_dataset(folder(tmp_path, [*CORPUS, {"id": "c", "text": " "}], QUERIES))
    assert len(read.passages) == 3 and read.notes == ("1 passages of corpus.jsonl are empty and cannot be found",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'["a"]', "is not a JSON object"),
        (b'{"text": "x"}', "'id' must be a non-empty text"),
        (b'{"id": "", "text": "x"}', "'id' must be a non-empty text"),
        (b'{"id": true, "text": "x"}', "'id' must be a non-empty text"),
        (b'{"id": "x"}', "'text' is missing"),
        (b'{"id": "x", "text": 3}', "'text' must be a text, got int"),
        (b'{"id": "x", "text": "\\ud800"}', "surrogate"),
        (b'{"id": "x", "text": "y", "meta": []}', "'meta' must be an object"),
        (b'{"id": "x", "text": "y", "meta": {"a": "\\ud800"}}', "surrogate"),
        (b'{"id": "x", "text": "\xff"}', "is not UTF-8"),
        (b'{"id": "a", "text": "again"}', "line 1 has the same id 'a'"),
    ],
)
def test_a_bad_line_is_told_by_its_file_and_number(tmp_path: Path, line: bytes, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_dataset(folder(tmp_path, b'{"id": "a", "text": "x"}\n\n' + line, QUERIES))
    assert "corpus.jsonl:3: " in str(error.value) and said in str(error.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "x", "text": " "}, "'text' is empty"),
        ({"id": "x", "text": "?", "relevant": "a"}, "'relevant' must be a list"),
        ({"id": "x", "text": "?", "relevant": [[]]}, "'relevant' must be a non-empty text"),
    ],
)
def test_a_bad_question_is_told_too(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=r"queries\.jsonl:2: ") as error:
        read_dataset(folder(tmp_path, CORPUS, [*QUERIES, row]))
    assert said in str(error.value)


def test_many_bad_lines_are_told_as_ten_and_the_rest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        read_dataset(folder(tmp_path, b"{\n" * 13, QUERIES))
    assert str(error.value).count("is not JSON") == 10 and "and 3 more" in str(error.value)


@pytest.mark.parametrize(("corpus", "queries"), [(b"", QUERIES), (b" \n\n", QUERIES), (CORPUS, b"")])
def test_a_file_without_rows_says_what_to_write(tmp_path: Path, corpus: Any, queries: Any) -> None:
    with pytest.raises(InvalidInput, match=r'write lines like \{"id"'):
        read_dataset(folder(tmp_path, corpus, queries))


def test_a_line_that_never_ends_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 1_000)
    with pytest.raises(InvalidInput, match=r"corpus\.jsonl:2: the line has more than 1000 bytes"):
        read_dataset(folder(tmp_path, b'{"id": "a", "text": "x"}\n' + b"x" * 5_000, QUERIES))


def test_a_folder_or_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder"):
        read_dataset(tmp_path / "none")
    with pytest.raises(InvalidInput, match="does not exist; a folder of questions has corpus"):
        read_dataset(tmp_path)
    (tmp_path / "corpus.jsonl").write_text(json.dumps(CORPUS[0]))
    assert read_dataset(tmp_path, questions=False).passages == (Passage("a", "Keys."),)


def test_the_digest_follows_what_is_there_and_not_how_it_is_written(tmp_path: Path) -> None:
    first = read_dataset(folder(tmp_path, CORPUS, QUERIES))
    spaced = b"\r\n".join(json.dumps(row, indent=None, separators=(" , ", " : ")).encode() for row in CORPUS)
    assert read_dataset(folder(tmp_path, spaced, QUERIES)).digest() == first.digest()
    ordered, turned = (
        [{"id": "a", "text": "", "meta": meta}, *CORPUS[1:]] for meta in ({"x": 1, "y": 2}, {"y": 2, "x": 1})
    )
    assert len({read_dataset(folder(tmp_path, rows, QUERIES)).digest() for rows in (ordered, turned)}) == 1
    other = read_dataset(folder(tmp_path, CORPUS, [{**QUERIES[0], "relevant": ["a"]}]))
    assert other.digest() != first.digest() and other.digest(questions=False) == first.digest(questions=False)
    assert read_dataset(folder(tmp_path, CORPUS[::-1], QUERIES)).digest(questions=False) != first.digest(
        questions=False
    )


def test_a_sample_is_spread_evenly() -> None:
    questions = [Question(str(n), "?") for n in range(10)]
    assert [each.id for each in sampled(questions, 4)] == ["0", "2", "5", "7"]
    assert sampled(questions, 0) == sampled(questions, 10) == tuple(questions)
