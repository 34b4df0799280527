"""The table of Speech-LLaMA decoder calls."""

import pytest
import speech_llama_heads


def test_calls_of_each_head_type(tmp_path):
    speech_llama_heads.main(
        ["--shapes", "mini", "--tokens", "2", "3", "--precisions", "float32", "--rounds", "1",
         "--threads", "1", "--output_dir", str(tmp_path)]
    )  # fmt: skip
    (table,) = tmp_path.glob("*/speech_llama_heads.md")
    rows = [line.split("|")[1:-1] for line in table.read_text().splitlines()[4:]]
    assert [row[:3] for row in rows] == [["mini", "float32", "2"], ["mini", "float32", "3"]]
    for *_, one, projection, latent, ratio in rows:
        assert float(one) > 0
        assert float(ratio) == pytest.approx(float(latent) / float(projection), rel=0.1)
