"""Compare decodings with the baseline."""

import pytest
from exp_folders import write_eta

from espnet_medusa.report.decodings import find_decodings
from espnet_medusa.report.results import compare_all, comparison_markdown
from espnet_medusa.search.statistics import DecodingStatistics, write_statistics

SUM = "| Sum/Avg |  2  8 | 75.0  12.5  12.5  0.0  25.0  50.0 |\n"


def write_decoding(folder, texts, **values):
    folder.mkdir(parents=True)
    write_statistics(
        folder / "statistics.json", {key: DecodingStatistics(**values) for key in texts}
    )
    (folder / "text").write_text("".join(f"{key} {text}\n" for key, text in texts.items()))


@pytest.fixture
def exp_dirs(tmp_path):
    base, heads = tmp_path / "exp" / "asr_base", tmp_path / "exp" / "asr_block"
    plain = dict(decoder_calls=10, tokens=10, audio_seconds=5.0)
    texts = {"a": "x y", "b": "z", "c": "only here"}
    folder = base / "plain_asr_model_valid.acc.ave" / "test"
    write_decoding(folder, texts, **plain, decoder_seconds=2.0, total_seconds=3.0)
    drafts = dict(decoder_calls=4, drafted=[4, 3, 0], accepted=[3, 3, 0])
    folder = heads / "exact_asr_model_valid.acc_heads.ave" / "test"
    texts, seconds = {"a": "x y", "b": "other"}, dict(decoder_seconds=0.5, total_seconds=1.5)
    write_decoding(folder, texts, **plain | drafts | seconds)
    (folder / "score_wer").mkdir()
    (folder / "score_wer" / "result.txt").write_text(SUM)
    write_eta(folder, {"a": 5, "b": 3}, 4)
    return [base, heads]


def test_rows_have_the_measured_values(exp_dirs):
    plain, heads = compare_all(find_decodings(exp_dirs), exp_dirs[0] / "plain")
    assert plain["configuration"] == "base plain" and plain["wer"] is None
    assert (plain["speedup"], plain["identical"]) == (1.0, 3)
    assert heads == {
        "configuration": "block exact",
        "test_set": "test",
        "wer": 25.0,
        "eta": pytest.approx(2 * 8 / (8 + 8)),
        "tokens_per_call": 2.5,
        "decoder_calls": 8,
        "acceptance_per_head": [0.75, 1.0, 0.0],
        "decoder_rtf": 0.1,
        "rtf": 0.3,
        # Over a and b only: c was not decoded with heads.
        "decoder_speedup": 4.0,
        "speedup": 2.0,
        "identical": 1,
        "compared": 2,
    }


def test_without_plain_decoding_nothing_is_compared(exp_dirs):
    for row in compare_all(find_decodings(exp_dirs), None):
        assert {row[name] for name in ("speedup", "decoder_speedup", "identical", "compared")} == {
            None
        }


def test_plain_may_be_given_with_the_model(exp_dirs):
    rows = compare_all(find_decodings(exp_dirs), exp_dirs[0] / "plain_asr_model_valid.acc.ave")
    assert rows[1]["speedup"] == 2.0


def test_a_missing_baseline_is_refused_with_the_existing_ones(exp_dirs):
    with pytest.raises(ValueError, match="nonesuch: .* of test; there is .*plain_asr"):
        compare_all(find_decodings(exp_dirs), exp_dirs[0] / "nonesuch")


def test_test_set_without_plain_decoding_is_not_compared(exp_dirs):
    write_decoding(exp_dirs[1] / "exact_asr_model_valid.acc_heads.ave" / "more", {"a": "x"})
    rows = compare_all(find_decodings(exp_dirs), exp_dirs[0] / "plain")
    assert {row["test_set"]: row["compared"] for row in rows} == {"more": None, "test": 2}


def test_markdown_row(exp_dirs):
    text = comparison_markdown(compare_all(find_decodings(exp_dirs), exp_dirs[0] / "plain"))
    assert "|test|block exact|25.0|1.00|2.50|8|75 100 0|0.1000|0.3000|4.00|2.00|1/2|" in text
    assert "|test|base plain|-|-|1.00|30|-|0.4000|0.6000|1.00|1.00|3/3|" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1
    assert comparison_markdown([]) == ""
