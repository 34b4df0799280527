"""LibriSpeech's and VoxPopuli's recipes in miniature, with a random Whisper of its vocabulary."""

import subprocess
from pathlib import Path

import kaldiio
import pytest
import voxpopuli_miniature as miniature
import yaml
from downloads import serve
from librispeech_miniature import make_librispeech, make_librispeech_pc
from recipes import (
    ROOT,
    lines_about,
    link_llama_recipe,
    link_recipe,
    link_short_recipe,
    record_asr,
    run,
)
from tiny_whisper import save_tiny_whisper, save_whisper_of_bytes
from voxpopuli_miniature import TEST_SESSION, damage_audio
from voxpopuli_sessions import HELD_OUT_TIME

from espnet_medusa.data.kaldi.data_dir import parse_segment
from espnet_medusa.data.kaldi.table import read_results, read_table
from espnet_medusa.espnet.training.label_filter import MISFIT

SUBSETS = ("train-clean-100", "dev-clean", "dev-other", "test-clean")
# A few steps, on the CPU, without worker processes.
TRAINING = "--accum_grad 1 --max_epoch 1 --num_workers 0 --use_tensorboard false"
TRAINING += " --use_matplotlib false --batch_size"
BASELINE, EXACT = "baseline_asr_model_model", "exact_asr_model_valid.loss.best"
ASSISTED = "assistant_asr_model_model"


@pytest.fixture
def recipe(tmp_path):
    """Return the recipe with searches of bounded length: a random Whisper never ends."""
    ways = ("baseline", "exact", "draft_model")
    return link_short_recipe(tmp_path, "librispeech/asr1", ways, maxlenratio=-24)


def damage(corpus: Path) -> tuple[str, str]:
    """Truncate a FLAC file of test-clean, remove another one's transcript; return both ids."""
    (table,) = (corpus / "test-clean").rglob("*.trans.txt")
    truncated, unwritten = (line.split()[0] for line in table.read_text().splitlines()[:2])
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if unwritten not in line))
    audio = table.with_name(f"{truncated}.flac")
    audio.write_bytes(audio.read_bytes()[:-2000])
    return truncated, unwritten


def run_whisper(
    recipe: Path, *options: object, status: int = 0, batch_size: int = 1
) -> subprocess.CompletedProcess:
    return run(
        recipe, "./run.sh", "--ngpu", "0", "--nj", "1", "--inference_nj", "1", "--num_heads", "2",
        "--decodings", "baseline assistant", "--heads_decodings", "exact",
        "--inference_dtype", "float32", "--asr_args", f"{TRAINING} {batch_size}", *options,
        status=status,
    )  # fmt: skip


def test_from_the_corpus_to_the_papers_tables(recipe, tmp_path):
    corpus = make_librispeech(recipe / "downloads", SUBSETS, n_readers=1, n_utterances=4)
    truncated, unwritten = damage(corpus)
    whisper = save_whisper_of_bytes(tmp_path / "whisper", seed=2)
    manifests = make_librispeech_pc(tmp_path / "pc", corpus)
    options = ["--part", "100", "--librispeech_pc_dir", manifests, "--whisper_model", whisper]
    options += ["--labels", "references"]  # a random Whisper never ends
    options += ["--speed_perturb_factors", "1.0 1.1"]
    assistant = save_whisper_of_bytes(tmp_path / "assistant", decoder_layers=1)
    options += ["--assistant", assistant, "--draft_vocab_size", "100"]

    with serve() as server:
        server.files["/12/test-other.tar.gz"] = b"not what was published"
        more = ["--openslr", server.url, "--systems", "vanilla block"]
        done = run_whisper(recipe, *options, *more, status=3)
    # Each problem is one line; all stages run on the rest of the corpus.
    assert len(lines_about(done, "test-other.tar.gz: is damaged")) == 1
    assert len(lines_about(done, f"{truncated}.flac: {truncated}: is", "truncated")) == 1
    assert len(lines_about(done, f"{unwritten}: is missing ({unwritten}.flac is there)")) == 1
    assert "not complete: stage 1: data/test_other/wav.scp is not there" in done.stderr
    assert "not complete: stage 1: 2 utterances, see data/test_clean/bad_utterances" in done.stderr

    exp = recipe / "exp"
    vanilla, assisted, block = (
        read_table(exp / folder / "test_clean" / "text", require_value=False)
        for folder in (f"asr_vanilla/{BASELINE}", f"asr_vanilla/{ASSISTED}", f"asr_block/{EXACT}")
    )
    assert len(vanilla) == 2 and all(vanilla.values())
    assert vanilla == assisted == block, "drafts do not change Whisper's text"
    # Training keeps case and punctuation; scoring removes both.
    assert any(text.endswith(".") for text in read_table(recipe / "dump/raw/dev/text").values())
    reference = (exp / f"asr_block/{EXACT}/test_clean/score_wer/ref.trn").read_text()
    assert "." not in reference and reference == reference.lower()
    assert set(read_table(recipe / "dump/raw/test_clean/utt2lang").values()) == {"en"}
    log = (exp / f"asr_block/{EXACT}/test_clean/logdir/asr_inference.1.log").read_text()
    assert "--longform true --dtype float32 --utt2lang dump/raw/test_clean/utt2lang" in log
    results = (exp / "RESULTS.md").read_text()
    assert "- Not run: test-clean: Whisper vanilla (2 of 2620 utterances); " in results
    assert "- Not run: test-other.\n- Command of what was not run: `./run.sh`.\n" in results
    assert "|test-clean|" not in results
    assert "|Medusa-Block|3.40|" in results, "published figures"
    assert "- Models: published Whisper large-v2, 10 heads; ours whisper." in results
    assert "block exact" in (exp / "DECODING.md").read_text()

    # The others use the existing data.
    before = (recipe / "dump/raw/test_clean/.stamp.json").stat().st_mtime_ns
    later = ["--stage", "11", "--stop_stage", "11", "--systems", "finetune"]
    run_whisper(recipe, *options, *later)
    assert (recipe / "dump/raw/test_clean/.stamp.json").stat().st_mtime_ns == before
    assert_trained(exp / "asr_finetune", updates=8)
    # Another Whisper is refused in the same folder.
    done = run_whisper(recipe, "--whisper_model", "openai/whisper-tiny", "--stage", "16", status=2)
    assert "give another --expdir" in done.stderr


def assert_trained(experiment: Path, updates: int) -> None:
    assert (experiment / "valid.loss.best.pth").is_file()
    assert f"total_count={updates}, [valid]" in (experiment / "train.log").read_text()


@pytest.mark.full_length
def test_every_system_trains(recipe, tmp_path):
    make_librispeech(recipe / "downloads", SUBSETS, n_readers=1, n_utterances=4)
    options = ["--part", "100", "--whisper_model", save_tiny_whisper(tmp_path / "whisper")]
    options += ["--librispeech_pc", "false", "--test_sets", "test_clean", "--stop_stage", "11"]
    systems = ["linear", "linear_frozen", "block", "recurrent", "attending", "ctc", "ctc_tokens"]
    systems += ["finetune", "finetune_audio"]
    run_whisper(recipe, *options, "--labels", "references", "--systems", " ".join(systems))
    for system in systems:
        assert_trained(recipe / "exp" / f"asr_{system}", updates=4)


def test_another_language_is_refused_in_the_same_folder(tmp_path):
    recipe = link_recipe(tmp_path, "librispeech/asr1")
    record_asr(recipe)
    whisper = save_whisper_of_bytes(tmp_path / "whisper")
    options = ["--whisper_model", whisper, "--systems", "vanilla", "--stop_stage", "11"]
    run(recipe, "./whisper.sh", *options, status=0)
    run(recipe, "./whisper.sh", *options, "--lang", "en", status=0)  # the same prompt
    done = run(recipe, "./whisper.sh", *options, "--lang", "de", status=2)
    assert "--lang de: exp has en; give another --expdir, or remove exp" in done.stderr
    run(recipe, "./whisper.sh", *options, "--lang", "de", "--expdir", "exp_de", status=0)
    for folder, language in {"exp": "en", "exp_de": "de"}.items():
        config = yaml.safe_load((recipe / folder / "asr_vanilla" / "config.yaml").read_text())
        assert config["preprocessor_conf"]["language"] == language


def test_mini_librispeech_in_two_folders(recipe, tmp_path):
    train = make_librispeech(tmp_path / "a", ("train-clean-5",), 3, 2, (0.2, 0.4))
    test = make_librispeech(tmp_path / "b", ("test-clean",), 1, 2, (0.2, 0.4))
    options = ["--part", "5", "--librispeech", f"{train} {test}", "--librispeech_pc", "false"]
    options += ["--valid_speakers", "1 3", "--test_sets", "test_clean test_clean_chapters"]
    options += ["--stop_stage", "4"]
    run_whisper(recipe, *options, "--whisper_model", "openai/whisper-tiny")
    texts = {path.parent.name: read_table(path) for path in recipe.glob("dump/raw/*/text")}
    counts = {"train_clean_5": 2, "dev": 4, "test_clean": 2, "test_clean_chapters": 1}
    assert {name: len(text) for name, text in texts.items()} == counts
    assert {key.split("-")[0] for key in texts["dev"]} == {"1", "3"}

    # An English-only Whisper in a folder without `.en` in its name.
    english = save_tiny_whisper(tmp_path / "english", vocab_size=51864)
    options += ["--systems", "linear", "--stage", "5", "--stop_stage", "5"]
    done = run_whisper(recipe, *options, "--whisper_model", english, "--expdir", "exp_english")
    assert "51864 tokens" in done.stdout


@pytest.fixture
def llama_recipe(tmp_path):
    """Return the recipe with small decoders that end early."""
    configs = "train_speech_llama_whisper*.yaml"
    folder = link_llama_recipe(tmp_path, "librispeech/asr1", configs, "baseline", "exact")
    (folder / "conf" / "report").symlink_to(ROOT / "conf" / "report")
    return folder


def run_llama(recipe: Path, *options: object, status: int = 0) -> subprocess.CompletedProcess:
    given = ["--part", "5", "--test_sets", "test_clean", "--ngpu", "0", "--nj", "1"]
    given += ["--inference_nj", "1"]
    return run(recipe, "./run_speech_llama.sh", *given, *options, status=status)


def test_speech_llama_writes_the_tables(llama_recipe, tmp_path, monkeypatch):
    corpus = make_librispeech(tmp_path, ("train-clean-5", "test-clean"), 3, 3, (0.4, 0.8))
    whisper = save_whisper_of_bytes(tmp_path / "whisper", hidden_size=32)
    options = ["--whisper_model", whisper, "--librispeech", corpus, "--valid_speakers", "2"]
    options += ["--test_utterances", "4", "--nbpe", "24"]
    options += ["--heads", "speech_llama_whisper_latent_2", "--decodings", "exact"]
    run_llama(llama_recipe, *options)
    monkeypatch.chdir(llama_recipe)  # paths in scp files begin there
    for name in ("train_clean_5", "dev"):
        memory = kaldiio.load_scp(f"dump/memory/{name}/memory.scp")
        for key, number in read_table(f"dump/raw/{name}/utt2num_samples").items():
            assert len(memory[key]) == -(-(int(number) // 160) // 2), "no padded frames"
    exp = llama_recipe / "exp"
    paths = exp.glob("asr_speech_llama_whisper*/*/test_clean_part/text")
    texts = [read_table(path, require_value=False) for path in paths]
    assert len(texts) == 2 and len(texts[0]) == 4 and texts[0].keys() == texts[1].keys()
    trained = yaml.safe_load((exp / "asr_speech_llama_whisper_latent_2/config.yaml").read_text())
    names = [name for _, name, _ in trained["train_data_path_and_name_and_type"]]
    assert names == ["memory", "text"], "no audio in the epochs"
    assert trained["init_param"] == ["exp/asr_speech_llama_whisper/valid.acc.ave.pth"]
    report = (exp / "speech_llama" / "REPORT.md").read_text()
    assert "|part of test-clean|baseline|" in report and "|part of test-clean|latent 2" in report
    assert "|all of test-clean|" not in report and "- Utterances: 4 (part of test-clean)." in report
    assert "a small Speech-LLaMA after whisper's frozen encoder" in report

    options = ["--whisper_model", "openai/whisper-tiny", "--stage", "11"]
    assert "give another --expdir" in run_llama(llama_recipe, *options, status=2).stderr


BROKEN_TEST_SESSION = "20190202-0900-PLENARY-16"
BROKEN_SESSION = "20190302-0900-PLENARY-1"
# A random model ends at once or never: texts are of 4 to 12 tokens.
LENGTHS = {"minlenratio": -4, "maxlenratio": -12}


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
def voxpopuli(tmp_path):
    """Return the recipe with searches of bounded length, and a small Whisper."""
    folder = link_short_recipe(tmp_path, "voxpopuli/asr1", ("beam5_baseline", "exact"), **LENGTHS)
    languages = ("en", "de", "fr", "cs")
    save_whisper_of_bytes(folder / "tiny", languages=languages)
    return folder


def run_voxpopuli(recipe: Path, *options: str, status: int = 0) -> subprocess.CompletedProcess:
    given = ["--voxpopuli", "vox", "--whisper_model", "tiny", "--systems", "linear"]
    given += ["--decodings", "beam5_baseline", "--inference_dtype", "", *options]
    return run_whisper(recipe, *given, status=status, batch_size=4)


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


def test_self_supervised_recipe_writes_the_tables(voxpopuli):
    unwritten = build_damaged_corpus(voxpopuli / "vox")
    options = ["--lang", "cs", "--setup", "self_supervised", "--segmentation", "auto"]
    options += ["--states_nj", "2"]
    options += ["--max_compression_ratio", "100"]  # a random Whisper repeats itself
    done = run_voxpopuli(voxpopuli, *options, "--stop_stage", "11", status=3)
    assert len(lines_about(done, f"{unwritten}: has no transcript")) == 1
    for name in (f"{BROKEN_SESSION}_cs.ogg", f"{BROKEN_TEST_SESSION}_original.ogg"):
        (line,) = lines_about(done, name)
        assert "is truncated" in line
    check_training_data(voxpopuli)

    exp = voxpopuli / "exp/cs_self_supervised"
    assert "train_cs_unlabelled_written/text" in (exp / "asr_linear/config.yaml").read_text()
    states = voxpopuli / "dump/states_written/train_cs_unlabelled"
    written = (states / "shard.1/text", exp / "asr_linear/config.yaml")
    before = [path.stat().st_mtime_ns for path in written]
    # The test set still lacks what the first call could not read.
    done = run_voxpopuli(voxpopuli, *options, "--stage", "12", status=3)
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


def test_supervised_data_of_two_languages(voxpopuli):
    miniature.build_voxpopuli(voxpopuli / "vox", "de", prepared=True)
    miniature.build_voxpopuli(voxpopuli / "vox", "fr")
    for lang in ("de", "fr"):
        run_voxpopuli(voxpopuli, "--lang", lang, "--stop_stage", "4")
        for split, count in (("train", 16), ("dev", 4), ("test", 4)):
            folder = voxpopuli / f"dump/raw/{split}_{lang}"
            assert len(read_table(folder / "text")) == count
            assert {*read_table(folder / "utt2lang").values()} == {lang}
    assert (voxpopuli / "exp/de/whisper_model").is_file() and (voxpopuli / "exp/fr").is_dir()
    done = run_voxpopuli(voxpopuli, "--lang", "de", "--setup", "selfsupervised", status=2)
    assert "allowed are supervised and self_supervised" in done.stderr
