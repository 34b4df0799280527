"""Heads and CTC on cached states of a frozen Whisper have the losses of training on audio."""

import json
import os
import shutil
from pathlib import Path

import kaldiio
import numpy as np
import pytest
import soundfile
import torch
import yaml
from cases import combinations
from experiment import read_lines, write_lines, write_noise
from recorded_calls import interrupt_call
from refusals import assert_refused, command_refused, refuses
from whisper_training import losses, make_corpus, train, weights

from espnet_medusa.bin import convert, stage
from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.training import cached_shards, cached_states
from espnet_medusa.espnet.training.label_filter import ENDLESS, REPEATING
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.tokens import END, START
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

# A random Whisper repeats itself.
ALL = ["--max_compression_ratio", "1000", "--drop_fraction", "0"]
FROZEN = {"freeze_whisper": "all", "kl_weight": 0.0, "base_loss_weight": 0.0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = make_corpus(tmp_path_factory.mktemp("corpus"))
    write_lines(folder / "utt2num_samples", {key: 4800 for key in read_lines(folder / "wav.scp")})
    tokens = (folder / "tokens.txt").read_text("utf-8").split("\n")
    ids = {"decoder_start_token_id": tokens.index(START), "eos_token_id": tokens.index(END)}
    for name in ("config.json", "generation_config.json"):
        path = folder / "whisper" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | ids))
    options = [str(folder / "whisper"), str(folder / "vanilla"), "--language", "en"]
    convert.main([*options, "--tokenizer", str(folder / "tokenizer")])
    config = folder / "vanilla" / "config.yaml"
    fields = yaml.safe_load(config.read_text())
    fields["encoder_conf"]["window"] = "audio"
    config.write_text(yaml.safe_dump(fields))
    return folder


def cache(corpus: Path, output: Path, *options: str) -> Path:
    sets = ["--exp_dir", str(corpus / "vanilla"), "--data_dir", str(corpus)]
    stage.main(["cache_states", *sets, "--output_dir", str(output), "--batch_size", "3", *options])
    return output


def recognizer(corpus: Path, **options) -> Speech2Text:
    folder = corpus / "vanilla"
    return Speech2Text(folder / "config.yaml", folder / "model.pth", ctc_weight=0.0, **options)


def unlabelled(corpus: Path, folder: Path, keys) -> Path:
    folder.mkdir()
    for name in ("wav.scp", "utt2num_samples"):
        write_lines(folder / name, {key: read_lines(corpus / name)[key] for key in keys})
    write_lines(folder / "utt2spk", dict.fromkeys(keys, "speaker"))
    return folder


@pytest.fixture(scope="module")
def of_references(corpus, tmp_path_factory):
    return cache(corpus, tmp_path_factory.mktemp("states"), "--references", "true")


@pytest.fixture(scope="module")
def of_own_texts(corpus, tmp_path_factory):
    return cache(corpus, tmp_path_factory.mktemp("own"), *ALL)


def train_on_states(corpus, states, output, system, *options, encoder_out=True, **changes) -> Path:
    data = ["states.scp,speech,numpy_ark", "text_int,text,text_int"]
    data += ["memory.scp,memory,numpy_ark"] if encoder_out else []
    data += (
        ["memory_frames.scp,memory_frames,numpy_ark"]
        if (states / "memory_frames.scp").exists()
        else []
    )
    changes["data"] = [states / file for file in data]
    return train(corpus, output, system, *options, **changes)


@combinations(system=["linear_frozen", "block", "recurrent", "attending", "ctc", "ctc_units"])
def test_losses_are_those_of_audio(corpus, of_references, tmp_path, system):
    changes = {"max_epoch": 3, "accum_grad": 1}
    if not system.startswith("ctc"):
        changes["model_conf"] = FROZEN | {"kl_weight": float(system == "recurrent")}
    audio = train(corpus, tmp_path / "audio" / "exp", system, **changes)
    given = corpus, of_references, tmp_path / "states" / "exp", system
    cached = train_on_states(*given, encoder_out=system != "linear_frozen", **changes)
    # Adafactor amplifies the rounding to float16 in a new block.
    rel = 1e-2 if system == "ctc_units" else 1e-3
    first = losses(cached, "train")[1], losses(audio, "train")[1]
    assert first[0] == pytest.approx(first[1], rel=1e-3)
    for part in ("train", "valid"):
        there, here = losses(audio, part), losses(cached, part)
        assert there[3] < there[1], "it learns"
        assert [*here.values()] == pytest.approx([*there.values()], rel=rel), part


@pytest.fixture
def windowed(corpus, tmp_path):
    """The corpus, with a Whisper that pads audio to its window."""
    shutil.copytree(corpus, tmp_path / "windowed")
    config = tmp_path / "windowed" / "vanilla" / "config.yaml"
    config.write_text(config.read_text().replace("window: audio", "window: whisper"))
    return tmp_path / "windowed"


@pytest.mark.parametrize("system", ["block", "attending"])
def test_merged_rows_train_as_repeated_rows(windowed, tmp_path, system):
    """A merged row has the weight of its frames, so training equals that on repeated rows."""
    cached = cache(
        windowed, tmp_path / "cached", *["--references", "true", "--encoder_padding", "merged"]
    )
    archives = [
        kaldiio.load_scp(str(cached / f"{name}.scp")) for name in ("memory", "memory_frames")
    ]
    speech2text = recognizer(windowed, encoder_padding="merged")
    key, path = next(iter(read_lines(windowed / "wav.scp").items()))
    audio = speech2text.model.batch([soundfile.read(path, dtype="float32")[0]])
    encoder_out, frames = speech2text.model.encode(audio)
    assert np.allclose(archives[0][key], encoder_out[0], atol=2e-3)  # float16
    assert np.array_equal(archives[1][key], frames[0].numpy())
    assert (
        len(encoder_out[0])
        < frames.sum()
        == speech2text.model.encoder.whisper.whisper.config.max_source_positions
    )
    repeated = tmp_path / "repeated"
    shutil.copytree(cached, repeated)
    (repeated / "memory_frames.scp").unlink()
    places = f"ark,scp:{repeated}/memory.ark,{repeated}/memory.scp"
    with kaldiio.WriteHelper(places, write_function="numpy") as write:
        for key, rows in archives[0].items():
            write(key, rows.repeat(archives[1][key].astype(int), axis=0))
    whisper = {"whisper_model": str(windowed / "whisper"), "window": "whisper"}
    changes = {"model_conf": FROZEN, "max_epoch": 2, "accum_grad": 1, "encoder_conf": whisper}
    folders = (cached, repeated)
    runs = [
        train_on_states(windowed, folder, tmp_path / "exp" / folder.name, system, **changes)
        for folder in folders
    ]
    for part in ("train", "valid"):
        merged, all_rows = (losses(run, part).values() for run in runs)
        assert [*merged] == pytest.approx([*all_rows], rel=1e-4), part
    del changes["model_conf"]
    given = windowed, cached, tmp_path / "exp" / "ctc", "ctc"
    message = "memory_frames: merged padding; CTC trains on unpadded.scp"
    assert_refused(message, train_on_states, *given, error=SystemExit, **changes)


@pytest.mark.parametrize("system", ["ctc", "ctc_units"])
def test_ctc_trains_without_padded_frames(corpus, windowed, tmp_path, system):
    """Neither the cache nor training on audio has padded frames."""
    options = ["--references", "true", "--memory", "false", "--unpadded", "true"]
    unpadded = cache(windowed, tmp_path / "cached", *options)
    audios = read_lines(corpus / "wav.scp").items()
    samples = {key: soundfile.info(path).frames for key, path in audios}
    found = kaldiio.load_scp(str(unpadded / "unpadded.scp"))
    frames = {key: -(-(count + 8000) // 320) for key, count in samples.items()}
    assert {key: len(found[key]) for key in found} == frames
    (unpadded / "unpadded.scp").rename(unpadded / "memory.scp")
    whisper = {"whisper_model": str(corpus / "whisper"), "window": "whisper"}
    changes = {"max_epoch": 2, "accum_grad": 1, "encoder_conf": whisper}
    audio = train(windowed, tmp_path / "audio" / "exp", system, **changes)
    cached = train_on_states(windowed, unpadded, tmp_path / "states" / "exp", system, **changes)
    for part in ("train", "valid"):
        here, there = losses(cached, part).values(), losses(audio, part).values()
        assert [*here] == pytest.approx([*there], rel=1e-2), part


def test_labels_are_what_the_model_writes(corpus, of_own_texts):
    speech2text = recognizer(corpus, search="greedy", beam_size=1, lm_weight=0.0)
    texts, labels = read_lines(of_own_texts / "text"), read_lines(of_own_texts / "text_int")
    states = kaldiio.load_scp(str(of_own_texts / "states.scp"))
    encoder_out = kaldiio.load_scp(str(of_own_texts / "memory.scp"))
    for key, path in list(read_lines(corpus / "wav.scp").items())[:4]:
        samples, _ = soundfile.read(path, dtype="float32")
        text, _, ids, hypothesis = speech2text(samples)[0]
        label = [*map(int, labels[key].split())]
        assert texts[key] == " ".join((text or "").split()) or texts[key] == text.rstrip()
        assert label == hypothesis.yseq.tolist()[1:-1]
        assert states[key].dtype == encoder_out[key].dtype == np.float16
        assert len(states[key]) == len(label) + 1
        # The state after each token predicts the next one.
        logits = speech2text.asr_model.decoder.logits(torch.tensor(states[key]).float())
        prompt = len(hypothesis.yseq) - len(ids) - 1
        allowed = torch.ones(logits.size(1), dtype=torch.bool)
        allowed[list(speech2text.model.options.suppress_tokens)] = False
        assert logits.masked_fill(~allowed, -1e9)[prompt:-1].argmax(-1).tolist() == label[prompt:]


def test_texts_without_states_are_the_same_and_label_the_set(corpus, tmp_path, of_own_texts):
    audio = read_lines(corpus / "wav.scp")
    data = unlabelled(corpus, tmp_path / "data", audio)
    options = ["--states", "false", "--data_dir", str(data), *ALL, "--drop_fraction", "0.25"]
    output, labelled = tmp_path / "texts", tmp_path / "labelled"
    cache(corpus, output, *options, "--labelled_dir", str(labelled))
    written = read_lines(of_own_texts / "text")
    dropped, left = (read_lines(output / name) for name in ("dropped_utterances", "text"))
    assert len(dropped) == 4 and not dropped.keys() & left.keys()
    assert left == {key: text for key, text in written.items() if key not in dropped}
    assert not (output / "states.scp").exists() and not list(output.rglob("*.ark"))
    assert read_lines(labelled / "text") == left
    assert read_lines(labelled / "wav.scp") == {key: audio[key] for key in left}
    # Dropped texts are chosen again, but nothing is computed again.
    before = (output / "shard.1" / "text").stat().st_mtime_ns
    cache(corpus, output, *options, "--drop_fraction", "0", "--labelled_dir", str(labelled))
    assert read_lines(labelled / "text") == read_lines(output / "text") == written
    assert not (output / "dropped_utterances").exists()
    assert (output / "shard.1" / "text").stat().st_mtime_ns == before


def test_repeated_texts_and_endless_loops_are_dropped(
    corpus, tmp_path, capsys, monkeypatch, of_own_texts
):
    longest = max(len(ids.split()) for ids in read_lines(of_own_texts / "text_int").values())
    states = tmp_path / "states"
    shutil.copytree(of_own_texts / "shard.1", states / "shard.1")
    monkeypatch.setattr(WhisperMedusaDecoder, "max_depth", lambda *_: longest + 1)
    with command_refused(capsys, "no utterance is in states.scp"):
        cache(corpus, states)
    dropped = read_lines(states / "dropped_utterances")
    labels = read_lines(of_own_texts / "text_int")
    for key, reason in dropped.items():
        assert reason.startswith(ENDLESS if len(labels[key].split()) == longest else REPEATING)
    assert {ENDLESS} < {reason.split(":")[0] for reason in dropped.values()}


def test_jobs_share_the_set(corpus, tmp_path, monkeypatch, of_own_texts):
    monkeypatch.setattr(cached_shards, "SHARD_UTTERANCES", 5)
    for job in ("1", "2"):
        cache(corpus, tmp_path, *ALL, "--jobs", "2", "--job", job)
        assert not (tmp_path / "text").exists()
    shards = [f"shard.{number}" for number in range(1, 5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["settings.yaml", *shards]
    monkeypatch.setattr(cached_states.StateCache, "compute", None)  # nothing is left to do
    cache(corpus, tmp_path, *ALL)
    assert (tmp_path / "text_int").read_text() == (of_own_texts / "text_int").read_text()


def test_the_decode_config_and_utt2lang_are_used(corpus, tmp_path):
    keys = [*read_lines(corpus / "wav.scp")][:3]
    data = unlabelled(corpus, tmp_path / "data", keys)
    write_lines(data / "utt2lang", {keys[0]: "en", keys[1]: "de"})
    config = tmp_path / "beam.yaml"
    config.write_text("beam_size: 3\nctc_weight: 0.0\nmaxlenratio: -6\n")
    output = tmp_path / "states"
    with pytest.raises(SystemExit):
        cache(corpus, output, "--data_dir", str(data), "--config", str(config), *ALL)
    assert "language: 'de'" in read_lines(output / "failed_utterances")[keys[1]]
    speech2text = recognizer(corpus, beam_size=3, maxlenratio=-6)
    labels = read_lines(output / "text_int")
    for key in (keys[0], keys[2]):
        samples, _ = soundfile.read(read_lines(corpus / "wav.scp")[key], dtype="float32")
        assert labels[key] == " ".join(map(str, speech2text(samples)[0][3].yseq.tolist()[1:-1]))


def test_labels_of_references_have_the_languages_of_utterances(corpus, tmp_path, capsys):
    """Those of training on audio; the tiny tokenizer knows only English."""
    keys = [*read_lines(corpus / "wav.scp")][:2]
    data = unlabelled(corpus, tmp_path / "data", keys)
    write_lines(data / "text", {key: read_lines(corpus / "text")[key] for key in keys})
    write_lines(data / "utt2lang", {keys[0]: "en"})
    options = ["--data_dir", str(data), "--references", "true"]
    output = cache(corpus, tmp_path / "states", *options, *ALL)
    assert read_lines(output / "text_int").keys() == {*keys}
    write_lines(data / "utt2lang", {keys[0]: "de"})
    with command_refused(capsys, "language: 'de'"):
        cache(corpus, tmp_path / "german", *options)


def test_a_cache_of_other_settings_is_not_used(corpus, tmp_path, capsys):
    keys = [*read_lines(corpus / "wav.scp")][:2]
    data = unlabelled(corpus, tmp_path / "data", keys)
    write_lines(data / "text", {key: read_lines(corpus / "text")[key] for key in keys})
    given = corpus, tmp_path / "states", "--data_dir", str(data), *ALL
    cache(*given, "--references", "true")
    with command_refused(capsys, "other settings (references, text)", "settings.yaml"):
        cache(*given)
    write_lines(data / "text", dict.fromkeys(keys, "another text"))
    with command_refused(capsys, "other settings (text)"):
        cache(*given, "--references", "true")
    write_lines(data / "utt2lang", dict.fromkeys(keys, "en"))
    with command_refused(capsys, "other settings (utt2lang, text)"):
        cache(*given, "--references", "true")
    (data / "utt2lang").unlink()
    weights = corpus / "vanilla" / "model.pth"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1_000_000_000))
    with command_refused(capsys, "other settings (weights, text)"):
        cache(*given, "--references", "true")


def test_a_removed_setting_is_noticed(corpus, tmp_path, capsys):
    (tmp_path / "beam.yaml").write_text("search: beam\nbeam_size: 2\nctc_weight: 0.0\n")
    given = corpus, tmp_path / "states", *ALL
    cache(*given, "--config", str(tmp_path / "beam.yaml"))
    with command_refused(capsys, "other settings (config)"):
        cache(*given)


def test_changed_and_restored_audio_is_cached_again(corpus, tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    files = {key: data / f"{key}.wav" for key in ("a", "b")}
    write_lines(data / "wav.scp", files)
    write_lines(data / "utt2num_samples", dict.fromkeys(files, 4800))
    write_noise(files["a"], 0.3)
    given = corpus, tmp_path / "states", "--data_dir", str(data), *ALL
    with command_refused(capsys, "states of 1 of 2 utterances", status=3):
        cache(*given)
    before = kaldiio.load_scp(str(tmp_path / "states" / "memory.scp"))["a"]
    soundfile.write(files["a"], np.zeros(4800), 16000)
    write_noise(files["b"], 0.3)
    encoder_out = kaldiio.load_scp(str(cache(*given) / "memory.scp"))
    assert not np.array_equal(encoder_out["a"], before)
    np.testing.assert_allclose(encoder_out["b"], before, atol=1e-3)  # another batch


def test_caching_another_archive_keeps_the_earlier_ones(corpus, tmp_path):
    output = tmp_path / "states"
    cache(corpus, output, "--unpadded", "false", *ALL)
    encoder_out = {**kaldiio.load_scp(str(output / "memory.scp"))}
    cache(corpus, output, "--memory", "false", "--unpadded", "true", *ALL)
    assert len(read_lines(output / "unpadded.scp")) == len(encoder_out)
    again = kaldiio.load_scp(str(output / "memory.scp"))
    for key, rows in encoder_out.items():
        np.testing.assert_array_equal(again[key], rows)


def test_bad_options_are_one_line_errors(corpus, tmp_path, capsys):
    for options, message in (
        (["--states", "false", "--references", "true"], "--states false"),
        (["--job", "3", "--jobs", "2"], "--job 3: allowed with --jobs 2: 1 to 2"),
        (["--drop_fraction", "1"], "drop_fraction 1.0: must be 0 or more and below 1"),
        (["--drop_fraction", "-0.1"], "drop_fraction -0.1: must be 0 or more and below 1"),
        (["--max_compression_ratio", "1"], "max_compression_ratio 1.0: must be above 1"),
        (["--labelled_dir", str(corpus)], "it would replace the input"),
    ):
        with command_refused(capsys, message):
            cache(corpus, tmp_path / "states", *options)


def test_an_interrupted_pass_resumes(corpus, tmp_path, monkeypatch, of_own_texts):
    monkeypatch.setattr(cached_shards, "SHARD_UTTERANCES", 5)
    calls = interrupt_call(monkeypatch, cached_states.StateCache, "compute", 4)
    with pytest.raises(SystemExit):
        cache(corpus, tmp_path / "states", *ALL)
    assert not (tmp_path / "states" / "states.scp").exists()
    cache(corpus, tmp_path / "states", *ALL)
    keys = [{utterance.key for utterance in utterances} for _, utterances in calls]
    assert not set.union(*keys[:2]) & set.union(*keys[4:]), "the first shard is there"
    for name in ("text", "text_int", "speech_shape", "text_shape"):
        assert (tmp_path / "states" / name).read_text() == (of_own_texts / name).read_text()
    folders = tmp_path / "states", of_own_texts
    counts = [weights(path / "token_counts.pth")["decoder.token_counts"] for path in folders]
    assert torch.equal(*counts)


def test_a_bad_utterance_is_listed_and_the_others_are_cached(corpus, tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    write_noise(data / "good.wav", 0.3)
    (data / "bad.wav").write_bytes(b"no audio")
    write_lines(data / "wav.scp", {"bad": data / "bad.wav", "good": data / "good.wav"})
    write_lines(data / "utt2num_samples", {"bad": 4800, "good": 4800})
    with command_refused(capsys, "states of 1 of 2 utterances", status=3):
        cache(corpus, tmp_path / "states", "--data_dir", str(data), *ALL)
    assert [*read_lines(tmp_path / "states" / "states.scp")] == ["good"]
    assert "bad.wav" in read_lines(tmp_path / "states" / "failed_utterances")["bad"]


def test_failed_utterances_are_tried_again(corpus, of_own_texts, tmp_path, capsys, monkeypatch):
    compute, keys = cached_states.StateCache.compute, []

    def failing(self, utterances):
        results = zip(utterances, compute(self, utterances), strict=True)
        return [InputError("no") if one.key == "u3" else result for one, result in results]

    def recording(self, utterances):
        keys.extend(utterance.key for utterance in utterances)
        return compute(self, utterances)

    monkeypatch.setattr(cached_states.StateCache, "compute", failing)
    with command_refused(capsys, "states of 15 of 16 utterances", status=3):
        cache(corpus, tmp_path, *ALL)
    monkeypatch.setattr(cached_states.StateCache, "compute", recording)
    cache(corpus, tmp_path, *ALL)
    assert keys == ["u3"] and not (tmp_path / "failed_utterances").exists()
    assert (tmp_path / "text_int").read_text() == (of_own_texts / "text_int").read_text()
    found, expected = (kaldiio.load_scp(f"{path}/states.scp") for path in (tmp_path, of_own_texts))
    assert {*found} == {*expected}
    for key in found:
        np.testing.assert_allclose(found[key], expected[key], atol=2e-3)


def test_too_long_texts_are_listed_without_decoding_the_batch_again(
    corpus, of_references, tmp_path, capsys, caplog, monkeypatch
):
    lengths = {
        key: len(line.split()) for key, line in read_lines(of_references / "text_int").items()
    }
    most = sorted(lengths.values())[len(lengths) // 2]
    monkeypatch.setattr(WhisperMedusaDecoder, "max_depth", lambda *_: most + 1)
    with command_refused(capsys, "utterances", status=3):
        cache(corpus, tmp_path / "states", "--references", "true")
    states = kaldiio.load_scp(str(tmp_path / "states" / "states.scp"))
    expected = kaldiio.load_scp(str(of_references / "states.scp"))
    assert {*states} == {key for key, length in lengths.items() if length <= most}
    assert 0 < len(states) < len(lengths)
    for key in states:
        np.testing.assert_allclose(states[key], expected[key], atol=2e-3)
    assert "a batch of" not in caplog.text


def test_no_remaining_utterance_is_an_error(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(WhisperMedusaDecoder, "max_depth", lambda *_: 3)
    with command_refused(capsys, "no utterance is in states.scp"):
        cache(corpus, tmp_path / "states", "--references", "true")
    reasons = read_lines(tmp_path / "states" / "failed_utterances")
    assert len(reasons) == 16 and "the decoder has positions for 2" in reasons["u3"]


def test_a_too_small_disk_is_an_error_before_the_start(corpus, tmp_path, monkeypatch, capsys):
    usage = cached_states.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(cached_states.shutil, "disk_usage", lambda _: usage)
    with command_refused(capsys, "GB are needed, 0.00 GB are free"):
        cache(corpus, tmp_path / "states")
    assert not list((tmp_path / "states").iterdir())


def test_only_drafted_tokens_are_trained(corpus, of_references, tmp_path):
    counts = ["--init_param", str(of_references / "token_counts.pth")]
    conf = FROZEN | {"draft_vocab_size": 9}
    changes = {"max_epoch": 2, "accum_grad": 1, "model_conf": conf}

    def train_with(name: str, *options: str) -> Path:
        given = corpus, of_references, tmp_path / name / "exp", "linear_frozen"
        return train_on_states(*given, *options, encoder_out=False, **changes)

    some = train_with("some", *counts)
    assert losses(some, "train")[2] < losses(some, "train")[1]
    # Resumed runs and other GPUs must choose the same tokens.
    name, start = "decoder.token_counts", weights(of_references / "token_counts.pth")
    assert torch.equal(weights(some / "2epoch.pth")[name], start[name])
    changes["model_conf"] = conf | {"draft_vocab_size": 10_000}  # more than were ever seen
    assert losses(train_with("all", *counts), "train")[1] > losses(some, "train")[1]
    assert_refused("token_counts.pth", train_with, "none", error=SystemExit)


@refuses(
    ("linear_frozen", {"freeze_whisper": "nothing"}, True, "freeze_whisper: all"),
    ("block", {"freeze_whisper": "all_but_last_layer"}, True, "freeze_whisper: all"),
    ("block", {}, False, "memory: missing"),
    ("ctc", {}, True, "all parameters are frozen; set decoder_conf.heads or model_conf.ctc_weight"),
    error=SystemExit,
)
def test_mismatched_states_are_refused(system, conf, encoder_out, corpus, of_references, tmp_path):
    changes = {"model_conf": FROZEN | conf, "max_epoch": 1}
    train_on_states(
        corpus, of_references, tmp_path / "exp", system, encoder_out=encoder_out, **changes
    )
