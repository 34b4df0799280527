"""The mini recipe's corpus: speech engine, sentences, noise, plan, and the whole of stage 1."""

import random
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import kaldiio
import numpy as np
import pytest
import soundfile
from cases import cases, combinations
from downloads import tree
from espnet2.fileio.sound_scp import SoundScpReader
from refusals import assert_refused, command_refused, refused

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")

import make_corpus
from corpus_plan import CorpusOptions, plan_utterances, speaker_name
from espeak import Speaker
from noise import add_noise, coloured_noise, set_level
from recipes import ROOT
from sentences import load_language, parse_language

from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.table import read_table

LANGUAGES = sorted(path.stem for path in ROOT.glob("egs/mini_synth/asr1/local/languages/*.yaml"))
TEXT = "turn left behind the wooden door"


@pytest.fixture(scope="module")
def speaker():
    return Speaker()


def test_rate_and_pitch_take_effect(speaker):
    slow, _ = speaker.speak(TEXT, "en", rate_wpm=120)
    fast, _ = speaker.speak(TEXT, "en", rate_wpm=240)
    assert len(fast) < 0.7 * len(slow)
    voiced = {"text": "ah ah ah ah ah ah ah", "voice": "en+m3"}
    low, high = (pitch_hz(*speaker.speak(**voiced, pitch=pitch)) for pitch in (50, 90))
    assert high > 1.2 * low


def pitch_hz(samples: np.ndarray, rate: int) -> float:
    """Pitch by autocorrelation, between 60 and 400 Hz, from the middle of the samples."""
    middle = samples[len(samples) // 3 :][:8000]
    similarity = np.correlate(middle, middle, "full")[len(middle) - 1 :]
    shortest, longest = rate // 400, rate // 60
    return rate / (shortest + similarity[shortest:longest].argmax())


def test_two_speakers_of_one_process_do_not_share_samples(speaker):
    alone = len(Speaker().speak("one two three", "en+m1")[0])
    assert len(speaker.speak("one two three", "en+m1")[0]) == pytest.approx(alone, rel=0.02)


@cases(
    ({"voice": "xx"}, ["voice 'xx': espeak-ng cannot load language 'xx'"]),
    ({"voice": "en-gb"}, ["en-gb-x-rp"]),
    ({"voice": "en+nosuch"}, ["voice 'en+nosuch': espeak-ng took 'gmw/en' instead", " f1 f2"]),
    ({"voice": "en", "text": "  "}, ["text: nothing to speak"]),
    ({"voice": "en", "rate_wpm": 20}, ["rate_wpm=20: must be 80 to 450"]),
    ({"voice": "en", "pitch": 120}, ["pitch=120: must be 0 to 99"]),
)
def test_unusable_speech_options_are_refused(options, parts, speaker):
    with refused(*parts):
        speaker.speak(**{"text": TEXT, **options})


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_voice_of_a_language_speaks_without_clipping(speaker, name):
    language = load_language(name)
    voices = (*language.seen_voices, *language.unseen_voices)
    for voice in voices:
        samples, rate = speaker.speak(TEXT, voice)
        assert (rate, samples.dtype) == (22050, np.float32)
        assert 1.0 < len(samples) / rate < 4.0 and 0.05 < np.abs(samples).max() < 0.99
    assert len({speaker_name(voice) for voice in voices}) == len(voices)


@pytest.mark.parametrize("name", LANGUAGES)
def test_sentences_are_distinct_plain_words(name):
    sentences = list(islice(load_language(name).sentences(random.Random(1)), 3000))
    assert len(set(sentences)) == 3000
    for sentence in sentences:
        words = sentence.split(" ")
        assert 7 <= len(words) <= 20
        assert all(word.isalpha() and word.islower() for word in words), sentence


def small_language(**changes) -> dict:
    slots = {"animal": ["cat", "{size} dog"], "size": ["big", "small"]}
    content = {"templates": ["{animal} and {animal}", "hello"], "slots": slots}
    return content | {"seen_voices": ["en"], "unseen_voices": ["en+m1"]} | changes


def test_sentences_end_with_an_error_when_all_are_used():
    language = parse_language(small_language(), "test")
    assert language.n_sentences == 3 * 3 + 1
    assert language.vocabulary == {"and", "hello", "cat", "dog", "big", "small"}
    sentences = language.sentences(random.Random(0))
    assert {"hello", "cat and cat", "big dog and small dog"} <= {next(sentences) for _ in range(10)}
    assert_refused("10 sentences and 10 are used", next, sentences, error=ValueError)


@cases(
    ({"templates": ["the {bird}"]}, "phrase 'the {bird}': slot 'bird' has no phrases"),
    ({"slots": {"animal": ["{animal}"]}}, "slot 'animal' contains itself"),
    ({"templates": ["Hello"]}, "phrase 'Hello': must be lower-case words"),
    ({"templates": ["route 66"]}, "must be lower-case words"),
    ({"templates": [None]}, "quote them"),
    ({"unseen_voices": ["en"]}, r"voices both seen and unseen: \['en'\]"),
    ({"colours": []}, "has keys"),
)
def test_unusable_language_files_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^test.yaml: .*{message}"):
        parse_language(small_language(**changes), "test.yaml")


@combinations(snr_db=[12.0, 40.0], exponent=[0.0, 1.0])
def test_noise_has_the_given_level(snr_db, exponent):
    speech = np.sin(np.arange(16000) / 7).astype(np.float32)
    noise = add_noise(speech, snr_db, exponent, np.random.default_rng(0)) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(noise**2)) == pytest.approx(snr_db, abs=0.1)


def test_exponent_tilts_the_noise():
    def low_share(exponent: float) -> float:
        power = np.abs(np.fft.rfft(coloured_noise(16001, exponent, np.random.default_rng(0)))) ** 2
        return power[: len(power) // 8].sum() / power.sum()

    assert low_share(0.0) == pytest.approx(1 / 8, abs=0.02)
    assert low_share(1.0) > 0.6


def test_level_is_set_but_never_clips():
    samples = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    quiet = set_level(samples, -30)
    assert 20 * np.log10(np.sqrt(np.mean(quiet**2))) == pytest.approx(-30, abs=0.01)
    assert np.abs(set_level(samples, 0)).max() == pytest.approx(0.95)


def test_plan_separates_sentences_and_voices():
    options = CorpusOptions(dev_utterances=30, test_utterances=40, test_unseen_fraction=0.25)
    language = load_language("en")
    plan = list(islice(plan_utterances(language, options), 1000))
    assert plan == list(islice(plan_utterances(language, options), 1000))
    assert [u.set_name for u in plan] == ["dev"] * 30 + ["test"] * 40 + ["train"] * 930
    assert len({u.text for u in plan}) == len({u.utterance_id for u in plan}) == 1000
    assert [u.set_name for u in plan if u.voice in language.unseen_voices] == ["test"] * 10
    for u in plan:
        assert u.utterance_id.startswith(f"{u.speaker}-")
        assert 130 <= u.rate_wpm <= 190 and 12 <= u.snr_db <= 40
    assert next(plan_utterances(language, CorpusOptions(seed=1))).text != plan[0].text
    by_id = sorted(plan, key=lambda u: u.utterance_id)
    assert [u.speaker for u in by_id] == sorted(u.speaker for u in plan)


def test_fewer_voices_are_of_all_accents():
    language = load_language("en")
    few = CorpusOptions(dev_utterances=1, test_utterances=20, voices=9)
    by_set = {"train": set(), "dev": set(), "test": set()}
    for utterance in islice(plan_utterances(language, few), 400):
        by_set[utterance.set_name].add(utterance.voice)
    assert by_set["train"] == set(language.seen_voices[::2])
    assert by_set["test"] - by_set["train"] <= set(language.unseen_voices)
    accents = {voice.split("+")[0] for voice in by_set["train"]}
    assert accents == {voice.split("+")[0] for voice in language.seen_voices}


def run(directory: Path, monkeypatch, *options: str) -> None:
    monkeypatch.chdir(directory)
    sizes = ["--minutes", "0.4", "--dev_utterances", "3", "--test_utterances", "5"]
    make_corpus.main([*sizes, *options])


def test_corpus_is_a_set_of_kaldi_directories(tmp_path, monkeypatch):
    run(tmp_path, monkeypatch)
    texts = set()
    for name, n_expected in (("train", None), ("dev", 3), ("test", 5)):
        directory = tmp_path / "data" / name
        paths, text = (read_table(directory / table) for table in ("wav.scp", "text"))
        assert n_expected in (None, len(text))
        assert validate_data_dir(directory) == []
        audio = kaldiio.load_scp(str(directory / "wav.scp"))
        sound = SoundScpReader(str(directory / "wav.scp"))
        for key in text:
            rate, samples = audio[key]
            assert rate == 16000 and 1.5 < len(samples) / rate < 9
            np.testing.assert_array_equal(samples, sound[key][1])
            assert soundfile.info(paths[key]).subtype == "PCM_16"
        if name == "train":
            durations_s = [len(audio[key][1]) / 16000 for key in text]
            assert 24 <= sum(durations_s) < 24 + max(durations_s)
        assert texts.isdisjoint(text.values())
        texts |= set(text.values())
    # The tables name all audio files.
    assert len(list((tmp_path / "downloads").rglob("*.flac"))) == len(texts)


def test_number_of_processes_does_not_change_the_corpus(tmp_path, monkeypatch):
    # Several processes for so few utterances.
    monkeypatch.setattr(make_corpus, "BATCH_SIZE", 3)
    for nj in ("1", "3"):
        (tmp_path / nj).mkdir()
        run(tmp_path / nj, monkeypatch, "--nj", nj)
    assert tree(tmp_path / "1") == tree(tmp_path / "3")


def test_rerun_makes_only_missing_files_and_keeps_another_language(tmp_path, monkeypatch, capsys):
    def is_redone(*options: str) -> bool:
        run(tmp_path, monkeypatch, "--nj", "1", *options)
        return "nothing to do" not in capsys.readouterr().out

    assert is_redone()
    before = tree(tmp_path)
    assert not is_redone()
    assert not is_redone("--nj", "2")
    with monkeypatch.context() as patch:
        patch.setattr(make_corpus, "write_data_dir", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            is_redone("--seed", "1")
    # The tables on disk are those of seed 0, the audio is not.
    assert is_redone()
    assert tree(tmp_path) == before

    next((tmp_path / "downloads").rglob("*.flac")).unlink()
    assert is_redone()
    assert tree(tmp_path) == before

    # A second language is added to the first.
    assert is_redone("--language", "de", "--suffix", "_de")
    after = tree(tmp_path)
    assert before.items() < after.items()
    assert "data/test_de/text" in after
    assert all(key.startswith("de") for key in read_table(tmp_path / "data/train_de/text"))


@cases(
    (["--language", "xx"], ["language 'xx'", "allowed: de en"]),
    (["--minutes", "0"], ["--minutes 0.0: must be above 0"]),
    (["--min_snr_db", "50"], ["--min_snr_db 50.0: must not be above --max_snr_db 40.0"]),
    (["--test_unseen_fraction", "2"], ["must be 0 to 1"]),
    (["--nj", "0"], ["must be 1 or more"]),
    (["--voices", "99"], ["--voices 99: the language file has 18"]),
    (["--max_rate_wpm", "600"], ["--max_rate_wpm 600: must be 80 to 450"]),
)
def test_bad_options_are_refused(options, parts, tmp_path, monkeypatch, capsys):
    with command_refused(capsys, "error: ", *parts, status=2 if "--nj" in options else 1):
        run(tmp_path, monkeypatch, *options)
