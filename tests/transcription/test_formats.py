"""Formats are identical to those of openai-whisper's writers."""

import errno
import io
import random
from dataclasses import replace
from unittest.mock import Mock

import pytest
from cases import combinations
from decoded_segments import as_openai_has_them
from experiment import read_lines
from whisper.utils import WriteJSON, WriteSRT, WriteTSV, WriteTXT, WriteVTT

from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.segment import Segment, Word, write_segments_dir
from espnet_medusa.transcription.formats import FORMATS, Transcript
from espnet_medusa.transcription.recordings import Recording
from espnet_medusa.transcription.transcribe import OutputFolder

WRITERS = {"txt": WriteTXT, "vtt": WriteVTT, "srt": WriteSRT, "tsv": WriteTSV, "json": WriteJSON}
TEXTS = [" So it was.", " 那里 --> there", " a\ttab", " ¿Qué?", "no space", " two words"]


def random_transcript(rng: random.Random, tmp_path, with_words: bool) -> Transcript:
    """Segments, some of them empty, before and after one hour."""
    segments, now_s = [], rng.choice([0.0, 3590.123456])
    for _ in range(rng.randint(1, 6)):
        end_s, text = now_s + rng.uniform(0.02, 9), rng.choice(TEXTS)
        numbers = [rng.uniform(-1, 1) for _ in range(3)]
        words, count = [], rng.randint(1, 3)
        for place in range(count if with_words else 0):
            begin_s = now_s + place * (end_s - now_s) / count
            words.append(Word(rng.choice(TEXTS), begin_s, begin_s + 0.37, rng.random()))
        one = Segment(100, now_s, end_s, text, (50364, 7, 50400), 0.0, *numbers, tuple(words))
        if rng.random() < 0.2:
            one = Segment(100, now_s, now_s, "", (), 0.2, *numbers)
        segments.append(one)
        now_s = end_s
    (tmp_path / "talk.wav").touch()
    text = "".join(segment.text for segment in segments)
    recording = Recording(tmp_path / "talk.wav", "talk")
    return Transcript(recording, text, "en", segments=tuple(segments))


@combinations(with_words=[False, True], seed=range(12))
def test_files_are_identical_to_openai_whispers(tmp_path, seed, with_words):
    transcript = random_transcript(random.Random(seed), tmp_path, with_words)
    for name, writer in WRITERS.items():
        segments = as_openai_has_them(transcript.segments)
        for segment in segments if not transcript.has_words else ():
            # With words of an empty first segment, openai-whisper expects words of all segments.
            if segment["tokens"] or name in ("srt", "vtt"):
                segment.pop("words", None)
        for segment in segments:
            for word in segment.get("words", []) if name in ("srt", "vtt") else ():
                # Of words, openai-whisper leaves the arrow, which ends a cue.
                word["word"] = word["word"].replace("-->", "->")
        result = {"text": transcript.text, "segments": segments, "language": "en"}
        stream = io.StringIO()
        writer("").write_result(result, stream)
        assert FORMATS[name](transcript) == stream.getvalue(), name


def test_formats_of_nist(tmp_path):
    words = (Word(" So", 1.0, 1.25, 0.5), Word(" it goes,", 1.5, 2.0, 0.75))
    numbers = (0.0, -0.5, 1.2, 0.1)
    segments = (
        Segment(0, 1.0, 2.5, " So  it goes,", (1,), *numbers, words),
        Segment(0, 3.0, 3.0, "", (), *numbers),
    )
    recording = Recording(tmp_path / "my talk.wav", "my talk")
    transcript = Transcript(recording, " So it goes,", "en", segments=segments)
    assert FORMATS["stm"](transcript) == "my_talk 1 my_talk 1.00 2.50 So it goes,\n"
    assert FORMATS["ctm"](transcript) == (
        "my_talk 1 1.00 0.25 So 0.50\nmy_talk 1 1.50 0.50 it goes, 0.75\n"
    )


@combinations(seed=range(4))
def test_segments_are_a_data_directory(tmp_path, seed):
    transcript = random_transcript(random.Random(seed), tmp_path, False)
    entries = {"talk": str(transcript.recording.path), "other": "other.wav"}
    write_segments_dir(tmp_path / "segments", entries, {"talk": transcript.segments})
    with_text = [one for one in transcript.segments if one.text]
    places, texts = (read_lines(tmp_path / "segments" / name) for name in ("segments", "text"))
    times = [tuple(map(float, place.split()[1:])) for place in places.values()]
    assert times == [(round(one.start_s, 2), round(one.end_s, 2)) for one in with_text]
    assert [*texts.values()] == [" ".join(one.text.split()) for one in with_text]
    assert validate_data_dir(tmp_path / "segments") == []
    # With words there is a ctm; without recordings all files are removed.
    transcript = random_transcript(random.Random(seed), tmp_path, True)
    write_segments_dir(tmp_path / "segments", entries, {"talk": transcript.segments})
    assert (tmp_path / "segments" / "ctm").read_text() == FORMATS["ctm"](transcript)
    write_segments_dir(tmp_path / "segments", entries, {})
    assert not [*(tmp_path / "segments").iterdir()]


def test_the_data_directory_has_times_and_paths_of_kaldi(tmp_path):
    """Windows may end after the audio, and Kaldi would run a path that ends with "|"."""
    times = (1.0, 2.5), (2.8, 20.0), (2.998, 20.0), (5.0, 20.0)
    segments = tuple(Segment(0, *time, " So", (1,), 0.0, -0.5, 1.2, 0.1) for time in times)
    counted = DecodingStatistics(audio_seconds=3.0)
    talk = Transcript(Recording(tmp_path / "a.wav", "a"), " So", None, counted, segments=segments)
    others = [replace(talk, recording=Recording(tmp_path / name, name)) for name in ("|", "b ")]
    OutputFolder(tmp_path, [], {}, False).write_tables([talk, *others])
    places = read_lines(tmp_path / "segments" / "segments")
    assert [*places.values()] == ["a 1.00 2.50", "a 2.80 3.00"]
    assert read_lines(tmp_path / "segments" / "wav.scp") == {"a": str(tmp_path / "a.wav")}


def test_files_of_all_requested_formats_are_removed(tmp_path):
    for name in ("a.txt", "a.html", "a.srt", "b.txt"):
        (tmp_path / name).touch()
    failed = Transcript(Recording(tmp_path / "a.wav", "a"), error="no audio")
    OutputFolder(tmp_path, ["txt", "json", "html"], {}, False).remove(failed)
    assert {path.name for path in tmp_path.glob("*.*")} == {"a.srt", "b.txt", "journal.jsonl"}


def test_a_full_disk_is_no_failure_of_one_recording(tmp_path):
    transcript = Transcript(Recording(tmp_path / "a.wav", "a"), "So")
    failing = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        transcript.written(failing)
