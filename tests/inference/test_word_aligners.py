"""Times of words by a CTC branch over Whisper's tokens or over units, from samples to files."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from decoded_segments import assert_same, decode_samples
from drafted_whisper import with_model
from espnet2.asr.ctc import CTC
from experiment import write_samples
from openai_whisper import ctc_whisper, noise_and_silence
from refusals import assert_refused
from stock_experiment import files

from espnet_medusa.bin import asr_inference, transcribe
from espnet_medusa.data.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.longform import driver
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.segment import ctm_lines
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import WhisperWindows
from espnet_medusa.networks.unit_ctc import UnitCTC
from espnet_medusa.networks.whisper.tokens import make_tokenizer

BLOCK = {"input_layer": "conv1d2", "output_size": 16, "num_blocks": 0}
ONE_ATTEMPT = {"temperature_increment_on_fallback": None, "no_speech_threshold": None}
BY_CTC = {"word_timestamps": True, "word_times": "ctc", **ONE_ATTEMPT}
TOKENIZER = make_tokenizer(51865)
TEXTS = ["", "!", " ...", " ?!!!", " 10 %", " naïve café 🙂 end", " word" * 30, "那是一个问题。"]
OPTIONS = ["--word_timestamps", "true", "--word_times", "ctc", "--no_speech_threshold", "none",
           "--temperature_increment_on_fallback", "none", "--skip_silence", "false"]  # fmt: skip


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """With a CTC branch over 512 units, after a block that halves the frames."""
    conf = {"ctc_units": 512, "ctc_block": "transformer", "ctc_block_conf": BLOCK}
    return ctc_whisper(tmp_path_factory.mktemp("model"), **conf)


@pytest.fixture(scope="module")
def models(experiment):
    """Models by CTC branch; they share one ESPnet model, which takes seconds to build."""
    options = {"search": "greedy", "ctc_weight": 0.0, "draft_depth": 0}
    speech2text = Speech2Text(**files(experiment), **options)
    torch.manual_seed(2)
    tokens = speech2text.asr_model.token_list
    ctc = CTC(len(tokens), 32)
    over_bytes = UnitCTC(CTC(len(tokens), 32), BytePairUnits(tokens, 256), 32)
    branches = {"tokens": ctc, "bytes": over_bytes, "none": None}
    made = {name: with_branch(speech2text, branch) for name, branch in branches.items()}
    return made | {"block": speech2text}


def with_branch(speech2text, ctc):
    asr_model = copy.deepcopy(speech2text.asr_model)
    asr_model.ctc = ctc
    return with_model(speech2text, trained=replace(speech2text.model.trained, asr_model=asr_model))


def made_up(speech2text, monkeypatch, spikes, frames, columns) -> None:
    """Replace the branch by one with labels at some frames, and blanks elsewhere."""
    posteriors = torch.full((1, frames, columns), 1e-9)
    posteriors[:, :, 0] = 1.0
    for frame, (label, probability) in spikes.items():
        posteriors[0, frame, label], posteriors[0, frame, 0] = probability, 1e-6
    monkeypatch.setattr(
        speech2text.asr_model.ctc, "log_softmax", lambda encoder_out: posteriors.log()
    )


def align(speech2text, texts, frames, language="en", **options):
    """Return the words of each text in a window of this many 10 ms frames."""
    windows = WhisperWindows(speech2text.model, LongFormOptions(**BY_CTC | options))
    features = windows.features(noise_and_silence(frames / 100 + 0.1, 1))
    encoded = windows.encode([(features, Window(0, frames))])
    tokens = [TOKENIZER.encode(text, add_special_tokens=False) for text in texts]
    return [windows.align(encoded, 0, frames, language, own) for own in tokens]


def test_words_have_the_times_of_their_tokens(models, monkeypatch):
    text = " So it's over, isn't it!"
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    pieces = TOKENIZER.batch_decode([[one] for one in ids])
    assert pieces == [" So", " it", "'s", " over", ",", " isn", "'t", " it", "!"]
    places = [3, 20, 21, 40, 47, 60, 75, 90]  # the last token is 0, the blank
    assert ids[-1] == models["tokens"].asr_model.blank_id == 0
    spikes = {place: (one, 0.9) for place, one in zip(places, ids, strict=False)}
    spikes[75] = (ids[6], 0.4)
    made_up(models["tokens"], monkeypatch, spikes, 100, 51865)
    (found,) = align(models["tokens"], [text], 200)
    times = [(word.text, round(word.start_s, 6), round(word.end_s, 6)) for word in found]
    assert times == [
        (" So", 0.06, 0.08), (" it's", 0.4, 0.44), (" over", 0.8, 0.82), (",", 0.94, 0.96),
        (" isn't", 1.2, 1.52), (" it", 1.8, 1.82), ("!", 1.82, 2.0),
    ]  # fmt: skip
    probabilities = [0.9, 0.9, 0.9, 0.9, 0.65, 0.9, 0.0]
    assert [word.probability for word in found] == pytest.approx(probabilities, abs=1e-5)


def test_words_have_the_times_of_their_bytes(models, monkeypatch):
    """CTC has half of the encoder's frames; bytes are numbered as in Whisper's vocabulary."""
    text, names = " né 10.", TOKENIZER.convert_ids_to_tokens(range(256))
    pairs = zip([2, 3, 5, 6, 20, 21, 22, 30], ["Ġ", "n", "Ã", "©", "Ġ", "1", "0", "."], strict=True)
    spikes = {place: (names.index(sign) + 1, 1.0) for place, sign in pairs}
    made_up(models["bytes"], monkeypatch, spikes, 50, 257)
    (found,) = align(models["bytes"], [text], 200)
    times = [(word.text, round(word.start_s, 6), round(word.end_s, 6)) for word in found]
    assert times == [(" né", 0.08, 0.28), (" 10", 0.8, 0.92), (".", 1.2, 1.24)]
    assert [word.probability for word in found] == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", ["tokens", "bytes", "block"])
def test_words_of_every_text_are_ordered_and_within_the_window(models, name, language):
    """The same words as by attention, even in a window with few frames."""
    by_attention = align(models[name], TEXTS, 300, language, word_times="attention")
    expected = [[(word.text, word.tokens) for word in words] for words in by_attention]
    assert align(models[name], TEXTS, 1, language) == [[]] * len(TEXTS)
    for frames in (2, 3, 7, 33, 290):
        found = align(models[name], TEXTS, frames, language)
        assert [[(word.text, word.tokens) for word in words] for words in found] == expected
        for words in found:
            edges = [edge for word in words for edge in (word.start_s, word.end_s)]
            assert np.diff([0, *edges, frames // 2 * 0.02]).min() > -1e-9
            assert all(0 <= word.probability <= 1 for word in words)


def test_segments_contain_their_words(models):
    samples = noise_and_silence(34, 4)
    segments = [*models["block"].transcribe(samples, **BY_CTC)]
    assert sum(len(one.words) for one in segments) > 3
    for seek in {one.seek for one in segments}:
        own = [one for one in segments if one.seek == seek]  # a word may go on in the next segment
        words = [word for one in own for word in one.words]
        assert "".join(word.text for word in words) == "".join(one.text for one in own)
        edges = [edge for word in words for edge in (word.start_s, word.end_s)]
        assert edges == sorted(edges)
    for one in segments:
        if one.words:
            assert (one.start_s, one.end_s) == (one.words[0].start_s, one.words[-1].end_s)
    first = next(models["block"].transcribe(samples, **BY_CTC | {"word_times": "attention"}))
    assert [word.text for word in first.words] == [word.text for word in segments[0].words]


def test_words_by_ctc_do_not_run_the_decoder(experiment):
    """Its weights are released; word times by attention need them."""
    samples, by_ctc = noise_and_silence(5, 4), LongFormOptions(**BY_CTC)
    by_attention = replace(by_ctc, word_times="attention")
    options = {"search": "greedy", "ctc_weight": 0.0, "decoder_precision": "int8"}
    speech2text = Speech2Text(**files(experiment), **options)
    expected = [[*speech2text.transcribe(samples, **vars(one))] for one in (by_attention, by_ctc)]
    speech2text.release_weights(by_attention)
    decoder, encoder = speech2text.asr_model.decoder, speech2text.asr_model.encoder
    assert all(weight.numel() for weight in decoder.parameters())
    if speech2text.model.encoder.packed:
        assert not any(weight.numel() for weight in encoder.whisper.parameters())
    assert [*speech2text.transcribe(samples, **vars(by_attention))] == expected[0]
    speech2text.release_weights(by_ctc)
    assert not any(weight.numel() for weight in decoder.parameters())
    assert [*speech2text.transcribe(samples, **vars(by_ctc))] == expected[1]
    assert any(segment.words for segment in expected[1])


@pytest.mark.parametrize("vad_filter", [False, True])
def test_batches_have_the_words_of_single_recordings(models, vad_filter, monkeypatch):
    spans = [(0.5, 6.0), (7.0, 31.0), (33.0, 36.0)]
    monkeypatch.setattr(driver, "SpeechDetector", lambda *given: lambda speech: [
        one for one in spans if one[1] < speech.num_samples / 16000
    ])  # fmt: skip
    samples = [noise_and_silence(seconds, seconds) for seconds in (7, 37)]
    options = {"vad_filter": vad_filter, **BY_CTC}
    alone = [[*models["block"].transcribe(one, batch_size=1, **options)] for one in samples]
    together = decode_samples(models["block"], samples, LongFormOptions(**options), 4)
    for recording, segments in zip(together, alone, strict=True):
        assert_same(recording.segments, segments)
        assert recording.error is None and any(one.words for one in segments)


@pytest.fixture
def talk(tmp_path):
    write_samples(tmp_path, {"talk": noise_and_silence(31, 4)})
    return tmp_path


@pytest.fixture
def commands(experiment, models, talk, monkeypatch):
    def run(name, *words):
        monkeypatch.setattr(decoding_command, "load", lambda options, mapped: models[name])
        monkeypatch.setattr(models[name], "release_weights", lambda long_form: None)
        model = ["--model", str(experiment.folder), "--device", "cpu"]
        if words:
            transcribe.main([str(talk / "talk.wav"), *model, *OPTIONS, *words])
            return
        audio = ["--data_path_and_name_and_type", f"{talk}/wav.scp,speech,sound"]
        output = ["--longform", "true", "--output_dir", str(talk / "job")]
        asr_inference.main([*experiment.options(), *OPTIONS, *audio, *output])

    return run


def test_commands_write_word_times(models, talk, commands):
    samples, _ = soundfile.read(talk / "talk.wav", dtype="float32")
    segments = [*models["block"].transcribe(samples, **BY_CTC)]
    words = [word for one in segments for word in one.words]
    commands("block", "--output_format", "json", "--output_dir", str(talk / "json"))
    rows = json.loads((talk / "json" / "talk.json").read_text())["segments"]
    found = [(row["word"], row["start"], row["end"]) for one in rows for row in one["words"]]
    assert found == [(word.text, word.start_s, word.end_s) for word in words] != []
    commands("block")
    for name in ("json", "job"):
        assert (talk / name / "segments" / "ctm").read_text() == ctm_lines("talk", segments)


def test_a_model_without_ctc_is_refused_at_once(models, talk, commands, monkeypatch, capsys):
    monkeypatch.setattr(WhisperWindows, "features", None)
    message = "word_times: ctc; this model has no CTC branch .*; allowed here: attention"
    assert_refused(message, models["none"].transcribe, np.zeros(16000, np.float32), **BY_CTC)
    assert_refused(message, commands, "none", error=SystemExit)
    with pytest.raises(SystemExit):
        commands("none", "--output_dir", str(talk / "out"))
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("transcribe: error: word_times: ctc; this model has no CTC branch")
    assert not (talk / "out").exists() and not (talk / "job").exists()
