"""Jobs with utterances longer than the window: they are decoded as ``transcribe`` does."""

import filecmp
from dataclasses import replace

import pytest
import soundfile
from cases import cases
from decoded_segments import assert_same
from drafted_whisper import with_options
from experiment import read_lines, write_lines, write_samples
from job_log import log_to
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from recorded_calls import record_calls

from espnet_medusa.bin import stage
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.job import decode_job, read_input
from espnet_medusa.inference.journal import Journal
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder
from espnet_medusa.recipes.rtf import read_timings

SECONDS = {"a": 2, "b": 34, "c": 3, "d": 31, "e": 1, "f": 61}
LONG, SHORT = ("b", "d", "f"), ("a", "c", "e")
OPTIONS = LongFormOptions(
    no_speech_threshold=None, logprob_threshold=-4.2, temperature_increment_on_fallback=0.5
)
TABLES = ("text", "token", "token_int", "score")
SEGMENT_TABLES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt")


@pytest.fixture(scope="module")
def speech2text(tmp_path_factory):
    """A random Whisper whose texts end; it takes ESPnet seconds to make."""
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    save_openai_whisper(openai_whisper(1, end=4.0), path)
    options = {"search": "greedy", "language": "en", "maxlenratio": -12, "batch_size": 2}
    return Speech2Text.from_pretrained(str(path), **options)


@pytest.fixture(scope="module")
def samples():
    numbered = enumerate(SECONDS.items())
    return {key: noise_and_silence(seconds, seed) for seed, (key, seconds) in numbered}


@pytest.fixture(scope="module")
def whole(samples, speech2text, tmp_path_factory):
    """A corpus of all utterances, decoded into ``whole``, with its log."""
    corpus = tmp_path_factory.mktemp("corpus")
    write_samples(corpus, samples)
    with log_to(corpus / "asr_inference.1.log"):
        assert not run(corpus, speech2text, "whole").failed
    return corpus


@pytest.fixture
def corpus(whole, tmp_path):
    (tmp_path / "wav.scp").write_text((whole / "wav.scp").read_text())
    return tmp_path


def run(corpus, speech2text, output, long_form=OPTIONS, keys=None):
    write_lines(corpus / "keys", dict.fromkeys(keys or (), "x"))
    job = read_input([(str(corpus / "wav.scp"), "speech", "sound")], keys and corpus / "keys")
    job = replace(job, languages={"f": "de"})
    journal = Journal(corpus / output, {"long_form": str(long_form)})
    decode_job(make_decoder(speech2text, long_form, batch_size=2), job, journal)
    return journal


def make_decoder(speech2text, long_form=OPTIONS, **limits):
    reader = UtteranceReader(speech2text.model.audio)
    return UtteranceDecoder(speech2text, reader, long_form=long_form, **limits)


def transcribed(speech2text, samples, key, options=OPTIONS):
    return [*speech2text.transcribe(samples[key], "de" if key == "f" else None, **vars(options))]


def test_short_utterances_are_decoded_as_without_the_option(corpus, speech2text, monkeypatch):
    batches = record_calls(
        monkeypatch, Speech2Text, "decode", lambda _, given, *languages: [*map(len, given)]
    )
    without = run(corpus, speech2text, "without", long_form=None)
    assert {*without.failed} == {*LONG}
    for key in LONG:
        assert f"lasts {SECONDS[key]}.00 s, more than the 30 s" in without.failed[key]
        assert without.failed[key].endswith("or decode with longform: true")
    assert not (corpus / "without" / "segments").exists()
    ordinary, batches[:] = [*batches], []
    journal = run(corpus, speech2text, "with")
    assert not journal.failed and batches == ordinary
    for key in SHORT:
        assert journal.decoded[key].nbest == without.decoded[key].nbest


def test_long_utterances_are_transcribed(whole, samples, speech2text):
    out = whole / "whole"
    tables = {name: read_lines(out / "1best_recog" / name) for name in TABLES}
    assert [*tables["text"]] == [*SECONDS]
    assert [*read_lines(out / "segments" / "wav.scp")] == [*LONG]
    assert validate_data_dir(out / "segments") == []
    places = read_lines(out / "segments" / "segments").values()
    statistics = read_statistics(out / "statistics.json")
    decoded = Journal(out, {"long_form": str(OPTIONS)}).decoded
    for key in LONG:
        segments = transcribed(speech2text, samples, key)
        assert_same(decoded[key].segments, segments)
        text = "".join(segment.text for segment in segments)
        assert tables["text"][key] == " ".join(text.split()) != ""
        ids = [t for segment in segments for t in segment.tokens if t < speech2text.asr_model.eos]
        assert tables["token_int"][key].split() == [*map(str, ids)]
        assert tables["token"][key] == " ".join(speech2text.converter.ids2tokens(ids))
        # Whisper's last end can be after the audio; format_data would refuse that segment.
        ends = [min(one.end_s, SECONDS[key]) for one in segments]
        timed = zip(segments, ends, strict=True)
        spoken = [
            (one.start_s, end) for one, end in timed if one.text.strip() and end > one.start_s
        ]
        expected = [f"{key} {start:.2f} {end:.2f}" for start, end in spoken]
        assert [place for place in places if place.startswith(f"{key} ")] == expected != []
        assert statistics[key].decoder_calls == speech2text.statistics.decoder_calls
        assert statistics[key].audio_seconds == pytest.approx(SECONDS[key], abs=0.01)
    times = read_timings(whole / "asr_inference.1.log")
    assert len(times) == len(SECONDS)
    audio_s = sum(one.samples for one in times) / 16000
    assert audio_s == pytest.approx(sum(SECONDS.values()), abs=0.01)
    spent = sum(one.total_seconds for one in statistics.values())
    assert sum(one.seconds for one in times) == pytest.approx(spent, abs=0.02)


def test_the_score_is_the_sum_over_windows(corpus, samples, speech2text):
    # Without timestamps a segment has all tokens of its window.
    options = replace(OPTIONS, without_timestamps=True)
    journal = run(corpus, speech2text, "out", options, keys=["b"])
    segments = transcribed(speech2text, samples, "b", options)
    score = sum(one.average_log_probability * (len(one.tokens) + 1) for one in segments)
    written = float(journal.decoded["b"].nbest[0].score[len("tensor(") : -1])
    assert len(segments) == 2 and written == pytest.approx(score, abs=1e-3)


def test_an_interrupted_job_resumes(whole, corpus, speech2text, monkeypatch):
    add = Journal.add

    def interrupted(self, decoded):
        add(self, decoded)
        if decoded.key in LONG:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(corpus, speech2text, "out")
    long_form, begun = Speech2Text.long_form, []

    def counted(self, *limits):
        def run(recordings):
            return decode(begun.append(recording.key) or recording for recording in recordings)

        decode = long_form(self, *limits)
        return run

    monkeypatch.setattr(Speech2Text, "long_form", counted)
    assert not run(corpus, speech2text, "out").failed
    assert len(begun) == 2
    assert_same_files(whole / "whole", corpus / "out", TABLES[:3], "1best_recog")
    assert_same_files(whole / "whole", corpus / "out", SEGMENT_TABLES, "segments")


def assert_same_files(folder, other, names, place):
    assert filecmp.cmpfiles(folder / place, other / place, names, shallow=False)[0] == [*names]


def test_outputs_of_jobs_are_merged(whole, corpus, speech2text):
    run(corpus, speech2text, "log/output.1", keys=["a", "f", "c"])
    run(corpus, speech2text, "log/output.2", keys=["b", "d", "e"])
    command = ["--keys", f"{corpus}/wav.scp", "--log_dir", f"{corpus}/log"]
    stage.main(["merge_outputs", *command, "--output_dir", f"{corpus}/out"])
    texts = read_lines(whole / "whole" / "1best_recog" / "text")
    assert read_lines(corpus / "out" / "text") == texts
    assert_same_files(whole / "whole", corpus / "out", SEGMENT_TABLES, "segments")
    # Another run without the option removes the segments.
    run(corpus, speech2text, "log/output.1", keys=["a", "c"], long_form=None)
    run(corpus, speech2text, "log/output.2", keys=["e"], long_form=None)
    write_lines(corpus / "short.scp", dict.fromkeys(SHORT, "x"))
    command[1] = f"{corpus}/short.scp"
    stage.main(["merge_outputs", *command, "--output_dir", f"{corpus}/out"])
    assert not [*(corpus / "out" / "segments").iterdir()]


def test_bad_long_utterances_do_not_stop_the_others(samples, speech2text, tmp_path):
    write_samples(tmp_path, {key: samples[key] for key in ("a", "b", "d", "f")})
    soundfile.write(tmp_path / "b.wav", samples["b"], 8000)
    (tmp_path / "f.wav").write_bytes((tmp_path / "f.wav").read_bytes()[:100_000])
    journal = run(tmp_path, speech2text, "out")
    assert {*journal.failed} == {"b", "f"} and {*journal.decoded} == {"a", "d"}
    assert "has a rate of 8000 Hz, the model expects 16000 Hz" in journal.failed["b"]
    assert "f.wav: is truncated" in journal.failed["f"]
    assert [*read_lines(tmp_path / "out" / "failed_utterances")] == ["b", "f"]
    assert [*read_lines(tmp_path / "out" / "segments" / "wav.scp")] == ["d"]


def test_an_unsupported_search_is_the_reason_of_each_failure(corpus, speech2text):
    journal = run(corpus, with_options(speech2text, acceptance="threshold"), "out")
    assert {*journal.failed} == {*LONG} and {*journal.decoded} == {*SHORT}
    for reason in journal.failed.values():
        assert (
            "more than the 30 s" in reason and "cut it at pauses, see docs/long_audio.md" in reason
        )
        assert reason.endswith("longform: acceptance: threshold; allowed with long audio: rules "
                               "that verify drafts")  # fmt: skip


@cases((4, None, 4), (4, 9000, 3), (2, 9000, 2), (4, 100, 1))
def test_max_batch_frames_limits_the_recordings_that_run_together(
    batch_size, frames, together, speech2text
):
    decoder = make_decoder(speech2text, batch_size=batch_size, max_batch_frames=frames)
    assert decoder.windows_together == together


def parse(*words):
    command = ["--output_dir", "out", "--data_path_and_name_and_type", "wav.scp,speech,sound"]
    return vars(decoding_command.get_parser().parse_args([*command, *words]))


def test_a_config_has_options_of_long_audio(tmp_path, caplog):
    config = tmp_path / "long.yaml"
    config.write_text(
        "longform: true\ncondition_on_previous_text: false\nclip_timestamps: [1, 40.5]\n"
        "temperature_increment_on_fallback: null\n"
    )
    given = parse("--config", str(config), "--logprob_threshold", "-0.5")
    assert decoding_command.choose_long_form(given) == LongFormOptions(
        condition_on_previous_text=False, clip_timestamps=(1, 40.5),
        temperature_increment_on_fallback=None, logprob_threshold=-0.5,
    )  # fmt: skip
    assert decoding_command.choose_long_form(parse("--longform", "true")) == LongFormOptions()
    other = parse("--config", str(config), "--initial_prompt", "Names")
    assert decoding_command.made_with(given) != decoding_command.made_with(other)
    # Without longform they are not used, a warning names them, and results are reused.
    caplog.clear()
    unused = parse("--config", str(config), "--longform", "false")
    assert decoding_command.choose_long_form(unused) is None
    assert "condition_on_previous_text: not used; it needs longform" in caplog.text
    assert "logprob_threshold" not in caplog.text
    assert decoding_command.made_with(unused) == decoding_command.made_with(parse())


def test_fallback_decodes_short_utterances_again(corpus, speech2text, samples):
    options = replace(OPTIONS, without_timestamps=None)
    decoder = make_decoder(speech2text, options, batch_size=2, all_in_windows=True)
    job = read_input([(str(corpus / "wav.scp"), "speech", "sound")], None)
    outcomes = {outcome.key: outcome for outcome in decoder.decode(job)}
    assert [*outcomes] != [*SECONDS] and {*outcomes} == {*SECONDS}
    for key in SHORT:
        segments = transcribed(speech2text, samples, key, replace(options, without_timestamps=True))
        assert outcomes[key].nbest[0].text == "".join(one.text for one in segments)
        assert outcomes[key].segments is None, "no times were requested"
    assert {one.temperature for one in segments} != {0.0}
    for key in LONG[:2]:
        assert_same([*outcomes[key].segments], transcribed(speech2text, samples, key))


def test_options_of_fallback_and_clips_that_are_no_numbers(capsys):
    given = parse("--fallback", "true")
    assert decoding_command.choose_long_form(given) == LongFormOptions(without_timestamps=None)
    assert decoding_command.made_with(given) != decoding_command.made_with(parse())
    with pytest.raises(InputError, match="nbest: 3; fallback: true allows only 1"):
        decoding_command.choose_long_form(parse("--fallback", "true", "--nbest", "3"))
    assert parse("--clip_timestamps", "1,40.5")["clip_timestamps"] == (1, 40.5)
    with pytest.raises(SystemExit):
        parse("--clip_timestamps", "a")
    assert "--clip_timestamps: 'a'; allowed: seconds, such as 0,10.5" in capsys.readouterr().err
