"""Jobs in batches: each utterance has a result or a reason, in order, whatever fails."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from experiment import make_experiment, read_lines, write_corpus
from job_log import FORMATTER, espnet_seconds

from espnet_medusa.inference.audio_batch import AudioLimits
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.job import decode_job, read_input
from espnet_medusa.inference.journal import Journal
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder
from espnet_medusa.search.statistics import DecodingStatistics, read_statistics

RATE_HZ = 16000


@dataclass
class FakeSpeech2Text:
    """Returns the number of samples as text; raises on demand."""

    most_rows: int = 100
    bad_samples: int | None = None
    whisper: None = None
    tried: list[list[int]] = field(default_factory=list)

    def decode(self, speeches, languages) -> list[Decoding]:
        assert len(languages) == len(speeches)
        sizes = [len(speech) for speech in speeches]
        self.tried.append(sizes)
        if len(sizes) > self.most_rows:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
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
    fake = FakeSpeech2Text()
    failed, _ = run(tmp_path, fake, batch_size=4)
    assert failed == 0
    descending = sorted(corpus.values(), reverse=True)
    assert fake.tried == [descending[:4], descending[4:8], descending[8:]]
    assert [*texts(tmp_path).items()] == [(key, f"t{size}") for key, size in corpus.items()]


def test_batch_size_1_decodes_in_the_order_of_the_keys(corpus, tmp_path):
    fake = FakeSpeech2Text()
    run(tmp_path, fake)
    assert fake.tried == [[size] for size in corpus.values()]


def test_max_batch_frames_counts_padding(corpus, tmp_path):
    fake = FakeSpeech2Text()
    run(tmp_path, fake, batch_size=9, max_batch_frames=66)
    assert [len(sizes) for sizes in fake.tried] == [2, 2, 2, 3]
    assert all(len(sizes) * max(sizes) / 160 <= 66 for sizes in fake.tried)
    padded = FakeSpeech2Text()
    limits = {"batch_size": 9, "max_batch_frames": 600}
    run(tmp_path, padded, made_with={"again": 1}, padded=True, **limits)
    assert [len(sizes) for sizes in padded.tried] == [3, 3, 3]
    assert sum(padded.tried, []) == sorted(corpus.values(), reverse=True)


def test_utterances_that_exceed_gpu_memory_together_have_results(corpus, tmp_path, caplog):
    fake = FakeSpeech2Text(most_rows=3)
    failed, _ = run(tmp_path, fake, batch_size=9)
    assert failed == 0
    assert texts(tmp_path) == {key: f"t{size}" for key, size in corpus.items()}
    assert "lower max_batch_frames or batch_size" in caplog.text


def test_only_the_bad_utterance_of_a_batch_fails(corpus, tmp_path):
    fake = FakeSpeech2Text(bad_samples=corpus["u4"])
    failed, journal = run(tmp_path, fake, batch_size=5)
    assert failed == 1 and [*journal.failed] == ["u4"]
    reasons = read_lines(tmp_path / "output" / "failed_utterances")
    assert reasons == {"u4": f"{tmp_path / 'u4.wav'}: u4: this one is cursed"}
    assert [*texts(tmp_path)] == [key for key in corpus if key != "u4"]


def test_unreadable_files_fail_before_batching(corpus, tmp_path):
    (tmp_path / "u2.wav").write_bytes(b"RIFF" + bytes(100))
    (tmp_path / "u6.wav").unlink()
    fake = FakeSpeech2Text()
    failed, _ = run(tmp_path, fake, batch_size=4)
    assert failed == 2
    assert [len(sizes) for sizes in fake.tried] == [4, 3]
    assert [*read_lines(tmp_path / "output" / "failed_utterances")] == ["u2", "u6"]
    assert [*texts(tmp_path)] == [key for key in corpus if key not in ("u2", "u6")]


def test_results_are_recorded_batch_by_batch_and_the_job_resumes(corpus, tmp_path, caplog):
    fake = FakeSpeech2Text()
    decode, fake_decode = fake.decode, []

    def interrupted(speeches, languages):
        fake_decode.append(len(speeches))
        if len(fake_decode) == 3:
            raise KeyboardInterrupt
        return decode(speeches, languages)

    fake.decode = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, fake, batch_size=3)
    assert len((tmp_path / "output" / "journal.jsonl").read_text().splitlines()) == 1 + 6
    fake.decode, fake.tried = decode, []
    with caplog.at_level("INFO"):
        failed, _ = run(tmp_path, fake, batch_size=2)
    assert failed == 0 and "resumed: 6 of 9" in caplog.text
    shortest = sorted(corpus.values(), reverse=True)[6:]
    assert fake.tried == [shortest[:2], shortest[2:]]
    assert [*texts(tmp_path).items()] == [(key, f"t{size}") for key, size in corpus.items()]


def test_the_log_of_a_resumed_job_has_the_times_of_all_utterances(
    corpus, tmp_path, tmp_path_factory, caplog
):
    experiment = make_experiment(tmp_path_factory.mktemp("experiment"))
    speech2text = Speech2Text(experiment.config, experiment.model, maxlenratio=-12, search="greedy")
    failed, journal = run(tmp_path, speech2text)
    assert failed == 0
    lines = journal.path.read_text().splitlines(keepends=True)
    for done in (4, 9):  # utterances before the interruption
        journal.path.write_text("".join(lines[: 1 + done]))
        caplog.clear()
        with caplog.at_level("INFO"):
            run(tmp_path, speech2text)
        log = tmp_path / "asr_inference.1.log"
        log.write_text("".join(f"{FORMATTER.format(record)}\n" for record in caplog.records))
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


@pytest.mark.parametrize("options", [{"search": "greedy"}, {"beam_size": 3, "ctc_weight": 0.3}])
def test_a_batch_of_a_real_model_has_the_results_of_single_utterances(
    corpus, tmp_path, tmp_path_factory, options
):
    experiment = make_experiment(tmp_path_factory.mktemp("experiment"))
    outputs = []
    for batch_size in (1, 4):
        speech2text = Speech2Text(
            experiment.config, experiment.model, maxlenratio=-12, batch_size=batch_size, **options
        )
        failed, journal = run(
            tmp_path, speech2text, made_with={"rows": batch_size}, batch_size=batch_size
        )
        assert failed == 0
        outputs.append([*journal.decoded.values()])
    single, batch = ({entry.key: entry for entry in decoded} for decoded in outputs)
    for key in corpus:
        here, there = single[key].nbest[0], batch[key].nbest[0]
        assert (here.text, here.token_int) == (there.text, there.token_int)
        scores = [float(entry.score[len("tensor(") : -1]) for entry in (here, there)]
        assert np.allclose(*scores, atol=1e-3)
        for name in ("decoder_calls", "nodes", "tokens", "drafted", "accepted", "audio_seconds"):
            here, there = (getattr(entry[key].statistics, name) for entry in (single, batch))
            assert here == there, name
        assert batch[key].statistics.tokens > 0 and batch[key].statistics.decoder_seconds > 0
