import numpy as np
import pytest
from lab import texts
from lab.data import MissingData


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "LEAST_BYTES", 100)
    cookies = [f"cookie {i}: the cat isn't here, 42 times!\n" for i in range(40)]
    (tmp_path / "first").write_text("%\n".join(cookies[:20]))
    (tmp_path / "second").write_text("%\n".join(cookies[20:]))
    (tmp_path / "second.u8").symlink_to("second")
    (tmp_path / "first.dat").write_bytes(bytes(range(256)))
    return tmp_path


def test_a_missing_text_is_an_error_that_says_where_to_get_it(tmp_path):
    with pytest.raises(MissingData) as error:
        texts.find(str(tmp_path))
    for word in (str(tmp_path), "fortunes", "--data"):
        assert word in str(error.value)


def test_every_cookie_is_in_exactly_one_part(folder):
    text = texts.load(str(folder))
    for i in range(40):
        assert (text.train + text.held_out).count(f"cookie {i}:") == 1
    assert text.held_out.count("cookie") == 3
    assert "%" not in text.train


def test_characters_outside_the_table_become_spaces():
    codes = texts.characters("aZ\n~\x00é")
    assert [texts.CHARACTERS[code] for code in codes[:4]] == ["a", "Z", "\n", "~"]
    assert texts.CHARACTERS[codes[4]] == " "
    assert codes.max() < len(texts.CHARACTERS)


def test_words_are_numbered_by_how_frequent_they_are():
    words = texts.split_words("The cat isn't the dog; the cat sleeps.")
    assert words == ["the", "cat", "isn't", "the", "dog", ";", "the", "cat", "sleeps", "."]
    codes = texts.vocabulary(words, 3)
    assert codes == {"the": 1, "cat": 2}
    assert texts.encode(words, codes).tolist() == [1, 2, 0, 1, 0, 0, 1, 2, 0, 0]


def test_the_real_text_is_large_enough_to_learn_from(fortunes):
    text = texts.load()
    assert len(text.train) > 15 * len(text.held_out) * 0.8
    assert len(texts.vocabulary(texts.split_words(text.train), 16384)) == 16383
    assert np.bincount(texts.characters(text.held_out)).argmax() == texts.CHARACTERS.index(" ")
