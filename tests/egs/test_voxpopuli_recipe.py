"""VoxPopuli's recipe on a miniature: heads are trained on the texts of a random Whisper."""

import subprocess
from pathlib import Path

import pytest
import voxpopuli_miniature as miniature
from recipes import lines_about, link_short_recipe, run
from tiny_whisper import save_tiny_whisper
from voxpopuli_miniature import TEST_SESSION, damage_audio
from voxpopuli_sessions import HELD_OUT_TIME

from espnet_medusa.kaldi.data_dir import parse_segment
from espnet_medusa.kaldi.table import read_results, read_table
from espnet_medusa.training.label_filter import MISFIT

BROKEN_TEST_SESSION = "20190202-0900-PLENARY-16"
BROKEN_SESSION = "20190302-0900-PLENARY-1"
# A random model ends at once or never: texts are of 4 to 12 tokens.
LENGTHS = {"minlenratio": -4, "maxlenratio": -12}
TRAINING = "--batch_size 4 --accum_grad 1 --max_epoch 1 --num_workers 0 --use_matplotlib false"


def build_damaged_corpus(root: Path) -> str:
    """Truncate a test and an unlabelled session; return the id of a test utterance without text."""
    miniature.build_voxpopuli(root, "cs", unlabelled_sessions=9)
    broken = miniature.plan_session(BROKEN_TEST_SESSION, "test", 1, 300, "cs")
    path = miniature.write_session(root, "original", BROKEN_TEST_SESSION, broken)
    damage_audio(path, "truncated")
    damage_audio(root / f"raw_audios/cs/2019/{BROKEN_SESSION}_cs.ogg", "truncated")
    utterances = miniature.plan_voxpopuli("cs")
    utterances[-1].columns |= {"original_text": "", "normed_text": ""}
    miniature.write_annotation(root, "cs", utterances + broken)
    return utterances[-1].id


@pytest.fixture
def recipe(tmp_path):
    """Return the recipe with searches of bounded length, and a small Whisper."""
    folder = link_short_recipe(tmp_path, "voxpopuli/asr1", ("beam5_baseline", "exact"), **LENGTHS)
    save_tiny_whisper(folder / "tiny")
    return folder


def run_whisper(recipe: Path, *options: str, status: int = 0) -> subprocess.CompletedProcess:
    return run(
        recipe, "./run.sh", "--voxpopuli", "vox", "--whisper_model", "tiny", "--systems", "linear",
        "--num_heads", "2", "--decodings", "beam5_baseline", "--heads_decodings", "exact",
        "--nj", "1", "--inference_nj", "1", "--ngpu", "0", "--asr_args", TRAINING, *options,
        status=status,
    )  # fmt: skip


def check_training_data(recipe: Path) -> None:
    """Check that texts are those of Whisper, without the test set and the worst 5%."""
    unlabelled = read_table(recipe / "data/unlabelled_cs/segments")
    sessions = {parse_segment(value).recording for value in unlabelled.values()}
    assert len(sessions) == 9 and TEST_SESSION in sessions and BROKEN_SESSION not in sessions
    held_out = read_table(recipe / "data/train_cs_unlabelled/dropped_utterances")
    assert held_out.keys() == {key for key in unlabelled if key.startswith(TEST_SESSION)} != set()
    assert all(reason.startswith(HELD_OUT_TIME) for reason in held_out.values())
    texts_by_id = {}
    for name in ("train", "dev"):
        states = recipe / "dump/states_written" / f"{name}_cs_unlabelled"
        texts = read_table(states / "shard.1/text")
        assert not (states / "states.scp").exists(), "Medusa-Linear trains Whisper, on audio"
        texts_by_id |= texts
        dropped = read_results(states / "dropped_utterances")
        assert len(dropped) == len(texts) // 20 == (name == "train")
        assert all(reason.startswith(MISFIT) for reason in dropped.values())
        learned = recipe / "dump/raw" / f"{name}_cs_unlabelled_written"
        remaining = {key: text for key, text in texts.items() if key not in dropped}
        assert read_table(learned / "text") == remaining
        assert read_table(learned / "utt2lang") == dict.fromkeys(remaining, "cs")
    assert texts_by_id.keys() == unlabelled.keys() - held_out.keys()


def test_self_supervised_recipe_writes_the_tables(recipe):
    unwritten = build_damaged_corpus(recipe / "vox")
    options = ["--lang", "cs", "--setup", "self_supervised", "--segmentation", "auto"]
    options += ["--states_nj", "2"]
    options += ["--max_compression_ratio", "100"]  # a random Whisper repeats itself
    done = run_whisper(recipe, *options, "--stop_stage", "11", status=3)
    assert len(lines_about(done, f"{unwritten}: has no transcript")) == 1
    for name in (f"{BROKEN_SESSION}_cs.ogg", f"{BROKEN_TEST_SESSION}_original.ogg"):
        (line,) = lines_about(done, name)
        assert "is truncated" in line
    check_training_data(recipe)

    exp = recipe / "exp/cs_self_supervised"
    assert "train_cs_unlabelled_written/text" in (exp / "asr_linear/config.yaml").read_text()
    states = recipe / "dump/states_written/train_cs_unlabelled"
    written = (states / "shard.1/text", exp / "asr_linear/config.yaml")
    before = [path.stat().st_mtime_ns for path in written]
    # The test set still lacks what the first call could not read.
    done = run_whisper(recipe, *options, "--stage", "12", status=3)
    assert "2 utterances, see data/test_cs/bad_utterances" in done.stderr
    assert [path.stat().st_mtime_ns for path in written] == before
    folder = exp / "asr_linear/exact_asr_model_valid.loss.best/test_cs"
    assert len(read_table(folder / "text", require_value=False)) == 3
    assert "Sum/Avg" in (folder / "score_wer/result.txt").read_text()
    # Scoring removes case and punctuation.
    assert (folder / "score_wer/ref.trn").read_text().startswith("madam president 1\t")
    results = (exp / "RESULTS.md").read_text()
    assert "Medusa-Linear, exact (3 utterances; size of the set not given)" in results
    command = 'Command of what was not run: `for lang in cs fi nl; do ./run.sh --lang "${lang}"'
    assert command in results


def test_supervised_data_of_two_languages(recipe):
    miniature.build_voxpopuli(recipe / "vox", "de", prepared=True)
    miniature.build_voxpopuli(recipe / "vox", "fr")
    for lang in ("de", "fr"):
        run_whisper(recipe, "--lang", lang, "--stop_stage", "4")
        for split, count in (("train", 16), ("dev", 4), ("test", 4)):
            assert len(read_table(recipe / f"dump/raw/{split}_{lang}/text")) == count
            assert set(read_table(recipe / f"dump/raw/{split}_{lang}/utt2lang").values()) == {lang}
    assert (recipe / "exp/de/whisper_model").is_file() and (recipe / "exp/fr").is_dir()
    done = run_whisper(recipe, "--lang", "de", "--setup", "selfsupervised", status=2)
    assert "allowed are supervised and self_supervised" in done.stderr
