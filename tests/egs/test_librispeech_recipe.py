"""The LibriSpeech recipes end to end on a miniature, with a random Whisper of its vocabulary."""

import subprocess
from pathlib import Path

import kaldiio
import pytest
import yaml
from downloads import serve
from librispeech_miniature import make_librispeech, make_librispeech_pc
from recipes import ROOT, lines_about, link_llama_recipe, link_short_recipe, run
from tiny_whisper import save_tiny_whisper

from espnet_medusa.kaldi.table import read_table

SUBSETS = ("train-clean-100", "dev-clean", "dev-other", "test-clean")
# A few steps of one utterance each, on the CPU, without worker processes.
TRAINING = (
    "--batch_size 1 --accum_grad 1 --max_epoch 1 --num_workers 0 --use_tensorboard false"
    " --use_matplotlib false"
)
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


def run_whisper(recipe: Path, *options: object, status: int = 0) -> subprocess.CompletedProcess:
    return run(
        recipe, "./run.sh", *options, "--ngpu", "0", "--nj", "1", "--inference_nj", "1",
        "--decodings", "baseline assistant", "--heads_decodings", "exact", "--num_heads", "2",
        "--inference_dtype", "float32", "--asr_args", TRAINING, status=status,
    )  # fmt: skip


def test_from_the_corpus_to_the_papers_tables(recipe, tmp_path):
    corpus = make_librispeech(recipe / "downloads", SUBSETS, n_readers=1, n_utterances=4)
    truncated, unwritten = damage(corpus)
    whisper = save_tiny_whisper(tmp_path / "whisper")
    manifests = make_librispeech_pc(tmp_path / "pc", corpus)
    options = ["--part", "100", "--librispeech_pc_dir", manifests, "--whisper_model", whisper]
    options += ["--labels", "references"]  # a random Whisper never ends
    options += ["--assistant", save_tiny_whisper(tmp_path / "assistant", decoder_layers=1)]

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
    assert len(vanilla) == 2 and vanilla == assisted == block, "drafts do not change Whisper's text"
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
    later = ["--stage", "11", "--stop_stage", "11", "--systems", "linear finetune finetune_audio"]
    run_whisper(recipe, *options, *later)
    assert (recipe / "dump/raw/test_clean/.stamp.json").stat().st_mtime_ns == before
    for system in ("linear", "finetune", "finetune_audio"):
        assert (exp / f"asr_{system}" / "valid.loss.best.pth").is_file()
        assert "total_count=4, [valid]" in (exp / f"asr_{system}" / "train.log").read_text()
    # Another Whisper is refused in the same folder.
    done = run_whisper(recipe, "--whisper_model", "openai/whisper-tiny", "--stage", "16", status=2)
    assert "give another --expdir" in done.stderr


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
    whisper = save_tiny_whisper(tmp_path / "whisper")
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
