"""Jobs in batches: each utterance has a result or a reason, in order, whatever fails."""

import io
import json
import logging
import math
import sys
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace

import kaldiio
import numpy as np
import pytest
import torch
from cases import cases
from experiment import read_lines, write_corpus, write_lines, write_noise
from job_log import espnet_seconds, log_to
from recorded_calls import interrupt_call
from refusals import assert_refused

from espnet_medusa.data import progress
from espnet_medusa.decoding.search.statistics import DecodingStatistics, read_statistics
from espnet_medusa.inference.audio_batch import AudioBatch, AudioLimits
from espnet_medusa.inference.decoding import Decoding, log_decoded
from espnet_medusa.inference.job import decode_job, read_input
from espnet_medusa.inference.journal import JOURNAL, Decoded, Journal, NBestEntry
from espnet_medusa.inference.longform.segment import Segment, Word
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder

RATE_HZ = 16000
PLAIN = Decoded("a", [NBestEntry("über", ["ü", "ber"], [3, 4], "tensor(-1.5)")])
STATISTICS = DecodingStatistics(3, 9, 5, drafted=[3, 2], accepted=[2, 0], total_seconds=0.1)
LONG = Decoded(
    "b",
    [NBestEntry(None, [], [], "tensor(0.)"), NBestEntry("x", ["x"], [1], "tensor(-2.)")],
    STATISTICS,
    "de",
    (
        Segment(0, 0.5, 2.25, " x", (7, 1, 8), 0.2, -0.25, 1.5, 0.0, (Word(" x", 0.5, 1.0, 0.75),)),
        Segment(3000, 30.0, 31.0, "", (), 0.0, -1.0, 0.5, 0.9),
    ),
)


@dataclass
class FakeSpeech2Text:
    """Returns the number of samples as text; raises for one of them."""

    bad_samples: int | None = None
    whisper: None = None
    tried: list[list[int]] = field(default_factory=list)

    def decode(self, speeches, languages) -> list[Decoding]:
        assert len(languages) == len(speeches)
        sizes = [len(speech) for speech in speeches]
        self.tried.append(sizes)
        if self.bad_samples in sizes:
            raise ValueError("this one is cursed")
        return [self._decoding(size) for size in sizes]

    def _decoding(self, size: int) -> Decoding:
        hypothesis = SimpleNamespace(score=torch.tensor(-1.5), yseq=torch.tensor([0]))
        statistics = DecodingStatistics(
            decoder_calls=size, tokens=2 * size, audio_seconds=size / RATE_HZ
        )
        return Decoding([(f"t{size}", [str(size)], [size], hypothesis)], statistics)


@pytest.fixture
def corpus(tmp_path):
    """Utterance id to number of samples; lengths are not in the order of ids."""
    sizes = {f"u{number}": 3200 + 160 * (number * 7 % 9) for number in range(9)}
    write_corpus(tmp_path, {key: size / RATE_HZ for key, size in sizes.items()})
    return sizes


def run(folder, speech2text, *, made_with=None, preprocess=None, padded=False, **limits):
    job = read_input([(str(folder / "wav.scp"), "speech", "sound")], None)
    journal = Journal(folder / "output", made_with or {})
    reader = UtteranceReader(AudioLimits(RATE_HZ, 2.0, padded), preprocess)
    return decode_job(UtteranceDecoder(speech2text, reader, **limits), job, journal), journal


def texts(folder):
    return read_lines(folder / "output" / "1best_recog" / "text")


def test_batches_have_similar_lengths_and_outputs_the_order_of_the_keys(corpus, tmp_path):
    descending = sorted(corpus.values(), reverse=True)
    for batch_size, tried in (
        (4, [descending[:4], descending[4:8], descending[8:]]),
        (1, [[size] for size in corpus.values()]),
    ):
        fake = FakeSpeech2Text()
        assert run(tmp_path, fake, made_with={"size": batch_size}, batch_size=batch_size)[0] == 0
        assert fake.tried == tried
        assert [*texts(tmp_path).items()] == [(key, f"t{size}") for key, size in corpus.items()]


def test_results_of_other_options_are_kept_but_not_used(corpus, tmp_path, caplog):
    made_with = {"options": {"beam_size": 5, "nbest": 1}, "files": {}}
    run(tmp_path, FakeSpeech2Text(), made_with=made_with)
    second = tmp_path / "output" / "2best_recog"
    second.mkdir()
    (second / "text").write_text("u0 old\n")
    written = (tmp_path / "output" / "journal.jsonl").read_text()
    for key in corpus:
        (tmp_path / f"{key}.wav").unlink()
    made_with["options"]["beam_size"] = 6
    assert run(tmp_path, FakeSpeech2Text(), made_with=made_with)[0] == len(corpus)
    assert f"{len(corpus)} results are not used" in caplog.text and "beam_size;" in caplog.text
    assert (tmp_path / "output" / "journal.old.jsonl").read_text() == written
    assert not [*(tmp_path / "output").glob("*best_recog/*")]


def test_equal_options_in_another_notation_keep_the_results(tmp_path, caplog):
    Journal(tmp_path, {"options": {"clip_timestamps": (5.0, 8.0), "beam_size": 5}}).add(PLAIN)
    again = {"options": {"beam_size": 5, "clip_timestamps": [5, 8], "unset": None}}
    assert Journal(tmp_path, again).decoded == {"a": PLAIN} and not caplog.messages


@pytest.mark.parametrize("line", ["", '{"options": {', "[]"])
def test_a_journal_with_a_damaged_first_line_is_set_aside(tmp_path, caplog, line):
    Journal(tmp_path, {}).add(PLAIN)
    path = tmp_path / JOURNAL
    damaged = "\n".join([line, *path.read_text().splitlines()[1:]])
    path.write_text(damaged)
    assert Journal(tmp_path, {}).decoded == {}
    assert f"{path}: 1 results are not used, because its first line is damaged" in caplog.text
    assert path.with_suffix(".old.jsonl").read_text() == damaged
    assert path.read_text() == "{}\n"


def test_max_batch_frames_counts_padding(corpus, tmp_path):
    fake = FakeSpeech2Text()
    run(tmp_path, fake, padded=True, batch_size=9, max_batch_frames=600)
    assert [len(sizes) for sizes in fake.tried] == [3, 3, 3]
    assert sum(fake.tried, []) == sorted(corpus.values(), reverse=True)


def test_only_the_bad_utterance_of_a_batch_fails(corpus, tmp_path):
    fake = FakeSpeech2Text(bad_samples=corpus["u4"])
    (tmp_path / "u2.wav").write_bytes(b"RIFF" + bytes(100))
    failed, journal = run(tmp_path, fake, batch_size=5)
    assert failed == 2 and [*journal.failed] == ["u2", "u4"]
    reasons = read_lines(tmp_path / "output" / "failed_utterances")
    assert reasons["u4"] == f"{tmp_path / 'u4.wav'}: this one is cursed"
    assert reasons["u2"].count(str(tmp_path / "u2.wav")) == 1
    assert [len(sizes) for sizes in fake.tried][:1] == [5], "an unreadable file is in no batch"
    assert [*texts(tmp_path)] == [key for key in corpus if key not in reasons]


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_only_the_utterance_with_nan_scores_of_a_batch_fails(
    search, corpus, experiment, tmp_path, monkeypatch
):
    options = {"maxlenratio": -6, "search": search, "ctc_weight": 0.0}
    speech2text = Speech2Text(experiment.config, experiment.model, **options)
    encode, longest = AudioBatch.encode, max(corpus.values())

    def damaged(audio, encoder):
        encoder_out, frames = encode(audio, encoder)
        encoder_out[audio.lengths == longest] = math.nan
        return encoder_out, frames

    monkeypatch.setattr(AudioBatch, "encode", damaged)
    failed, journal = run(tmp_path, speech2text, batch_size=5)
    [bad] = [key for key, size in corpus.items() if size == longest]
    assert [*journal.failed] == [bad] and failed == 1
    assert "scores of the next token are NaN" in journal.failed[bad]
    assert [*texts(tmp_path)] == [key for key in corpus if key != bad]


def test_a_bad_line_of_a_table_fails_its_own_utterance(tmp_path):
    """Each table lacks a value of one utterance, and of one that is not decoded."""
    audio, languages, texts = (tmp_path / name for name in ("wav.scp", "utt2lang", "text_prev"))
    audio.write_text("a a.wav\nb b.wav\nc c.wav\n")
    languages.write_text("a de\nb\nc de\nz\n")
    texts.write_text("a x\nb x\nc\nz\n")
    files = (str(audio), "speech", "sound"), (str(texts), "text_prev", "text")
    given = files, None, str(languages), True
    job = read_input(*given)
    assert job.keys == ["a", "b", "c"] and [*job.problems] == ["b", "c"]
    assert "utt2lang: has no value" in job.problems["b"]
    assert "text_prev: has no value" in job.problems["c"]
    languages.unlink()
    assert_refused("utt2lang: cannot be read", read_input, *given)


def test_results_are_recorded_batch_by_batch_and_the_job_resumes(
    corpus, tmp_path, caplog, monkeypatch
):
    fake = FakeSpeech2Text()
    interrupt_call(monkeypatch, fake, "decode", 3)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, fake, batch_size=3)
    assert len((tmp_path / "output" / "journal.jsonl").read_text().splitlines()) == 1 + 6
    fake.tried = []
    with caplog.at_level("INFO"):
        failed, _ = run(tmp_path, fake, batch_size=2)
    assert failed == 0 and "resumed: 6 of 9" in caplog.text
    shortest = sorted(corpus.values(), reverse=True)[6:]
    assert fake.tried == [shortest[:2], shortest[2:]]
    assert [*texts(tmp_path).items()] == [(key, f"t{size}") for key, size in corpus.items()]


def test_results_of_changed_input_are_decoded_again(corpus, tmp_path, caplog):
    scp, fake = tmp_path / "wav.scp", FakeSpeech2Text()
    assert run(tmp_path, fake)[0] == 0
    entries = read_lines(scp)
    write_lines(scp, entries | {"u1": entries["u2"], "u2": entries["u1"]})
    write_noise(tmp_path / "u7.wav", 0.5)
    fake.tried.clear()
    with caplog.at_level("INFO"):
        assert run(tmp_path, fake)[0] == 0
    sizes = corpus | {"u1": corpus["u2"], "u2": corpus["u1"], "u7": 8000}
    assert fake.tried == [[sizes[key]] for key in ("u1", "u2", "u7")]
    assert texts(tmp_path) == {key: f"t{size}" for key, size in sizes.items()}
    assert "decoded again: u1, u2, u7" in caplog.text and "resumed: 6 of 9" in caplog.text
    # Removed utterances are dropped; nothing is decoded again.
    scp.write_text("".join(scp.read_text().splitlines(keepends=True)[:5]))
    fake.tried.clear()
    assert run(tmp_path, fake)[0] == 0 and fake.tried == []
    assert [*texts(tmp_path)] == ["u0", "u1", "u2", "u3", "u4"]
    (tmp_path / "u3.wav").unlink()
    assert run(tmp_path, fake)[0] == 1 and "u3" not in texts(tmp_path)


def test_results_of_a_changed_ark_or_language_are_decoded_again(tmp_path):
    ark, scp, languages = (tmp_path / name for name in ("audio.ark", "wav.scp", "utt2lang"))
    languages.write_text("u0 de\nu1 de\n")

    def decode(*sizes) -> list[list[int]]:
        samples = {f"u{row}": (RATE_HZ, np.ones(size, np.int16)) for row, size in enumerate(sizes)}
        if sizes:
            kaldiio.save_ark(str(ark), samples, scp=str(scp))
        fake = FakeSpeech2Text()
        job = read_input([(str(scp), "speech", "kaldi_ark")], None, str(languages))
        reader = UtteranceReader(AudioLimits(RATE_HZ, 2.0, False))
        journal = Journal(tmp_path / "output", {})
        assert decode_job(UtteranceDecoder(fake, reader), job, journal) == 0
        return fake.tried

    assert sorted(decode(1600, 3200)) == [[1600], [3200]]
    assert decode() == []
    assert decode(1600, 4800) == [[4800]], "only the content counts"
    languages.write_text("u0 fr\nu1 de\n")
    assert decode() == [[1600]]


def test_the_log_of_a_resumed_job_has_the_times_of_all_utterances(corpus, experiment, tmp_path):
    speech2text = Speech2Text(experiment.config, experiment.model, maxlenratio=-12, search="greedy")
    failed, journal = run(tmp_path, speech2text)
    assert failed == 0
    lines = journal.path.read_text().splitlines(keepends=True)
    for done in (4, 9):  # utterances before the interruption
        journal.path.write_text("".join(lines[: 1 + done]))
        log = tmp_path / f"asr_inference.{done}.log"
        with log_to(log):
            run(tmp_path, speech2text)
        utterances, samples, seconds = espnet_seconds(log)
        assert (utterances, samples) == (9, sum(corpus.values()))
        rows = read_statistics(tmp_path / "output" / "statistics.json").values()
        # Log times have a resolution of milliseconds.
        assert seconds == pytest.approx(sum(row.total_seconds for row in rows), abs=0.01)
        assert seconds > 0


def test_preprocessing_and_statistics_are_per_utterance(corpus, tmp_path):
    seen = []

    def preprocess(key, data):
        seen.append((key, len(data["speech"])))
        return {"speech": data["speech"][:-1600]}

    run(tmp_path, FakeSpeech2Text(), preprocess=preprocess, batch_size=4)
    assert seen == [*corpus.items()]
    report = json.loads((tmp_path / "output" / "statistics.json").read_text())
    for key, size in corpus.items():
        row = report["utterances"][key]
        assert row["decoder_calls"] == size - 1600
        assert row["audio_seconds"] == pytest.approx((size - 1600) / RATE_HZ)
        assert row["tokens_per_call"] == 2
    assert report["set"]["num_utterances"] == 9
    assert report["set"]["decoder_calls"] == sum(corpus.values()) - 9 * 1600


def test_log_lines_have_the_time_of_the_share(tmp_path):
    began = datetime(2026, 11, 21, 1, 0, 59).timestamp() + 0.25
    with log_to(tmp_path / "log", log_decoded.__module__) as logger:
        log_decoded(8000, "a b", began, 1.5)
        logger.setLevel(logging.WARNING)
        log_decoded(8000, "not logged", began, 1.5)
    lines = [line.split(" (") for line in (tmp_path / "log").read_text().splitlines()]
    assert [time for time, _ in lines] == ["2026-11-21 01:00:59,250", "2026-11-21 01:01:00,750"]
    ends = "INFO: speech length: 8000", "INFO: best hypo: a b"
    assert all(line.endswith(end) for (_, line), end in zip(lines, ends, strict=True))


@cases(
    (300, "utterances", 20, [(1, 1)] * 280,
     [f"{80 + 60 * number} of 300 utterances, 0{3 - number}:40 left" for number in range(4)]),
    (3, "utterances", 0, [(0, 1)] * 3, []),
    (9.5, "minutes", 0, [(60, 0.0), (60, 1.25)], ["1.2 of 9.5 minutes, 13:12 left"]),
    ids=["utterances", "short", "minutes"],
)  # fmt: skip
def test_a_log_gets_one_line_per_minute_and_no_bar(
    total, unit, done, steps, lines, monkeypatch, caplog, capsys
):
    """Each step takes some seconds and finishes some of the work."""
    now_s = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s[0])
    with caplog.at_level(logging.INFO), progress.Progress(total, done, unit=unit) as shown:
        for seconds, count in steps:
            now_s[0] += seconds
            shown.update(count)
    assert [record.message for record in caplog.records] == [f"decoding: {one}" for one in lines]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total, shown", [(2.0, "3.0/3.0 minutes"), (5.0, "7.5/7.5 minutes")])
def test_a_bar_may_exceed_its_total(total, shown, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.Progress(total, unit="minutes") as bar:
        for _ in range(3):
            bar.update(total / 2)
    assert shown in capsys.readouterr().err


def test_characters_that_stdout_cannot_encode_are_replaced(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    progress.Progress.print("a für")
    assert stdout.buffer.getvalue() == b"a f?r\n"


def test_recorded_results_are_read_back(tmp_path):
    journal = Journal(tmp_path, {"beam_size": 1})
    for decoded in (PLAIN, LONG):
        journal.add(decoded)
    lines = (tmp_path / JOURNAL).read_text(encoding="utf-8").splitlines()
    expected = json.loads(json.dumps([asdict(decoded) for decoded in (PLAIN, LONG)]))
    assert [json.loads(line) for line in lines[1:]] == expected and "über" in lines[1]
    with (tmp_path / JOURNAL).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(expected[0] | {"key": "c", "field_of_another_version": 1}) + "\n")
    assert Journal(tmp_path, {"beam_size": 1}).decoded == {"a": PLAIN, "b": LONG}
    assert Journal(tmp_path, {"beam_size": 2}).decoded == {}


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_line_that_an_interruption_cut_is_ignored(tmp_path, cut):
    journal = Journal(tmp_path, {})
    odd = replace(PLAIN, key="odd", nbest=[replace(PLAIN.nbest[0], text="a\u2028b\x85c")])
    for decoded in (odd, replace(PLAIN, key="\u00fc")):
        journal.add(decoded)
    data = (tmp_path / JOURNAL).read_bytes()
    end = data.rindex("\u00fc".encode()) + 1 if cut == 1 else len(data) - cut
    (tmp_path / JOURNAL).write_bytes(data[:end])
    assert Journal(tmp_path, {}).decoded == {"odd": odd}


def test_line_breaks_in_texts_keep_one_line_per_utterance(tmp_path):
    journal = Journal(tmp_path, {})
    entry = replace(PLAIN.nbest[0], text="a\r\nb \nc", others={"text_nospecial": "a\nb"})
    journal.add(replace(PLAIN, key="odd", nbest=[entry]))
    journal.write_outputs(["odd"], {"odd": "odd.wav"})
    results = tmp_path / "1best_recog"
    assert (results / "text").read_text() == "odd a b  c\n"
    assert (results / "text_nospecial").read_text() == "odd a b\n"
