"""Texts longer than the decoder's positions."""

import pytest
from tiny_whisper import save_tiny_whisper

from espnet_medusa.recipe.shapes import drop_long_texts, longest_text


def shapes(folder, **lengths: str):
    for name in ("text_shape", "speech_shape"):
        lines = [f"{key} {shape if name[0] == 't' else 9}\n" for key, shape in lengths.items()]
        (folder / name).write_text("".join(lines))
    return folder


def test_the_limit_is_the_decoders(tmp_path):
    whisper = {"whisper_model": str(save_tiny_whisper(tmp_path / "whisper", vocab_size=300))}
    assert longest_text("whisper_medusa", whisper) == 447
    assert longest_text("whisper_medusa", {"max_target_positions": 40, "heads": "block"}) == 39
    assert longest_text("transformer", {"num_blocks": 6}) is longest_text(None, None) is None
    with pytest.raises(ValueError, match="decoder_conf: unknown option 'max_target_position'"):
        longest_text("whisper_medusa", {"max_target_position": 40})


def test_long_texts_leave_all_shape_files_and_another_limit_restores_them(tmp_path, capsys):
    lengths = {"a": "3", "b": "7", "c": "5,80", "d": "6"}
    assert drop_long_texts(shapes(tmp_path, **lengths), 5) == ["b", "d"]
    assert (tmp_path / "text_shape").read_text() == "a 3\nc 5,80\n"
    assert (tmp_path / "speech_shape").read_text() == "a 9\nc 9\n"
    assert (tmp_path / "long_texts").read_text() == "b 7\nd 6\n"
    assert "left out 2" in capsys.readouterr().out
    for longest in (None, 7):
        assert drop_long_texts(shapes(tmp_path, **lengths), longest) == []
        assert len((tmp_path / "text_shape").read_text().splitlines()) == 4
        assert not (tmp_path / "long_texts").exists()


def test_a_set_of_nothing_but_long_texts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="every text is longer than the decoder's 2 tokens; cut"):
        drop_long_texts(shapes(tmp_path, a="3", b="7"), 2)
