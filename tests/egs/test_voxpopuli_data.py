"""VoxPopuli's transcribed sets, from good and damaged miniatures in the corpus's layout."""

from pathlib import Path

import pytest
import voxpopuli_miniature as miniature
from cases import cases
from refusals import assert_refused
from tones import peak_frequency_hz
from voxpopuli_miniature import TEST_SESSION, build_voxpopuli, key_of, problems, run, tables
from voxpopuli_transcripts import parse_vad, read_rows

from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.kaldi.data_dir import Segment, parse_segment, validate_data_dir

pytestmark = pytest.mark.usefixtures("in_folder")


def build(**options) -> list[miniature.MiniatureUtterance]:
    build_voxpopuli(Path("vox"), **options)
    return miniature.plan_voxpopuli("de")


def check_pitch(utterance: miniature.MiniatureUtterance, entry: str, **times: float) -> None:
    samples, rate_hz = read_audio(entry, **times)
    assert rate_hz == 16000
    assert peak_frequency_hz(samples, rate_hz) == pytest.approx(utterance.pitch_hz, abs=2)


def test_sessions_become_segments_with_the_right_audio(capsys):
    utterances = build()
    assert run() == 0
    assert problems(capsys) == []
    for split, n_sessions in (("train", 4), ("dev", 1), ("test", 1)):
        assert validate_data_dir(f"data/{split}_de") == []
        result = tables(f"{split}_de")
        expected = [u for u in utterances if u.columns["split"] == split]
        assert len(expected) == 4 * n_sessions == len(result["text"])
        assert len(result["wav.scp"]) == n_sessions
        assert result["utt2session"] == result["segments"]
        assert set(result["utt2lang"].values()) == {"de"}
        for utterance in expected:
            key = key_of(utterance)
            assert result["text"][key] == utterance.columns["original_text"]
            assert result["utt2spk"][key] == utterance.columns["speaker_id"]
            times = {"start_s": utterance.start_s, "end_s": utterance.end_s}
            assert parse_segment(result["segments"][key]) == Segment(utterance.session, **times)
            check_pitch(utterance, result["wav.scp"][utterance.session], **times)


def test_utterances_of_get_asr_data_replace_segments_in_the_servers_layout(capsys):
    utterances = build()
    Path("vox/annotations/asr").mkdir(parents=True)
    Path("vox/transcribed_data/de/asr_de.tsv.gz").rename("vox/annotations/asr/asr_de.tsv.gz")
    assert run() == 0
    assert len(tables("train_de")["segments"]) == 16
    build_voxpopuli(Path("vox"), prepared=True)
    assert run() == 0
    assert problems(capsys) == []
    for split in ("train", "dev", "test"):
        assert validate_data_dir(f"data/{split}_de") == []
        result = tables(f"{split}_de")
        assert "segments" not in result
        for utterance in (u for u in utterances if u.columns["split"] == split):
            key = key_of(utterance)
            assert result["text"][key] == utterance.columns["original_text"]
            check_pitch(utterance, result["wav.scp"][key])
            # The place is in the annotation.
            place = parse_segment(result["utt2session"][key])
            assert (place.recording, place.start_s) == (utterance.session, utterance.start_s)


def test_without_annotation_an_utterance_is_known_by_its_session():
    utterances = build(prepared=True)
    Path("vox/transcribed_data/de/asr_de.tsv.gz").unlink()
    # Before 2022 the scripts wrote six columns.
    miniature.write_prepared(Path("vox"), "de", utterances, miniature.PREPARED_COLUMNS[:6])
    assert run() == 0
    assert set(tables("test_de")["utt2session"].values()) == {f"{TEST_SESSION} 0.000 -1.000"}


@pytest.mark.parametrize("text", ["raw", "normalized"])
def test_the_other_text_replaces_an_empty_one(text, capsys):
    utterances = build()
    utterances[0].columns["original_text"] = " "
    utterances[1].columns["normed_text"] = ""
    miniature.write_annotation(Path("vox"), "de", utterances)
    assert run("--text", text) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "1 utterances have" in captured.err
    result = tables("train_de")["text"]
    assert result[key_of(utterances[0])] == utterances[0].columns["normed_text"]
    assert result[key_of(utterances[1])] == utterances[1].columns["original_text"]
    column = "original_text" if text == "raw" else "normed_text"
    assert result[key_of(utterances[2])] == utterances[2].columns[column]


def test_quotes_are_read_as_written_or_undone():
    utterances = build()
    texts = ['"Ja" sagte sie', '"Er sagte ""nein"" dazu"', 'Die "Frage" ist', '"', "None"]
    for utterance, text in zip(utterances, texts, strict=False):
        utterance.columns["original_text"] = text
    utterances[5].columns["speaker_id"] = "None"
    utterances[6].columns["original_text"] = "a\rb\u2028c"
    miniature.write_annotation(Path("vox"), "de", utterances)
    assert run() == 0
    result = tables("train_de")
    read = [result["text"][key_of(utterance)] for utterance in utterances[:5]]
    assert result["text"][key_of(utterances[6])] == "a b c"
    assert read == [texts[0], 'Er sagte "nein" dazu', *texts[2:]]
    assert result["utt2spk"][f"unknown-{utterances[5].id}"] == "unknown"
    assert validate_data_dir("data/train_de") == []


def test_bad_lines_are_named_and_the_rest_is_prepared(capsys):
    utterances = build()
    changes = [
        ({"original_text": "", "normed_text": ""}, "has no transcript"),
        ({"vad": "[(1.0, oops)]"}, "has times that are no list of (start, end): [(1.0, oops)]"),
        ({"vad": "[(2.0, 1.0)]"}, "has impossible times: [(2.0, 1.0)]"),
        ({"vad": "[]"}, "has impossible times: []"),
        ({"vad": "[(1.0, 1.0)]"}, "lasts 0 s"),
        ({"vad": "[(8.0, 99.0)]"}, "ends at 99 s but its session at"),
        # This line may be of the test set.
        ({"original_text": "a|b"}, "line 8: has 13 columns, not 12"),
    ]
    for utterance, (change, _) in zip(utterances, changes, strict=False):
        utterance.columns |= change
    twice, invalid = utterances[7], miniature.plan_voxpopuli("de")[9]
    invalid.columns["split"] = "invalid"
    lines = [*utterances[:9], twice, invalid, *utterances[10:]]
    miniature.write_annotation(Path("vox"), "de", lines)
    assert run() == 3
    lines = problems(capsys)
    assert len(lines) == len(changes) + 1
    for utterance, (_, message) in zip(utterances, changes, strict=False):
        line = next(line for line in lines if message in line)
        assert utterance.id in line or "columns" in message
    assert sum(f"{twice.id}: occurs again in line 11" in line for line in lines) == 1
    remaining = {key_of(u) for u in utterances[7:16]} - {key_of(utterances[9])}
    assert set(tables("train_de")["text"]) == remaining
    assert len(tables("dev_de")["text"]) == len(tables("test_de")["text"]) == 4


def test_unusable_test_utterances_are_in_utt2session(capsys):
    utterances = build()
    session = "20190202-0900-PLENARY-15"
    added = miniature.plan_session(session, "test", 4, 300, "de")
    path = miniature.write_session(Path("vox"), "original", session, added)
    miniature.damage_audio(path, "truncated")
    utterances[-1].columns |= {"original_text": "", "normed_text": ""}
    miniature.write_annotation(Path("vox"), "de", [*utterances, *added])
    assert run() == 3
    assert len(problems(capsys)) == 1 + 4
    result = tables("test_de")
    assert set(result["bad_utterances"]) == {utterances[-1].id, *map(key_of, added)}
    assert len(result["text"]) == 3
    places = {key: parse_segment(value) for key, value in result["utt2session"].items()}
    assert len(places) == 3 + 4 + 1
    for utterance in added:
        place = places[key_of(utterance)]
        assert (place.recording, place.start_s) == (session, utterance.start_s)
    # Its times may be wrong: its whole session belongs to the test set.
    assert places[utterances[-1].id] == Segment(TEST_SESSION, 0, -1)
    assert validate_data_dir("data/test_de") == []


@cases(
    ("missing", "cannot be read (No such file"),
    ("truncated", "is truncated"),
    ("empty", "is an empty file"),
    ("garbage", "is no audio that libsndfile or FFmpeg reads"),
)
@pytest.mark.parametrize("prepared", [False, True])
def test_bad_audio_is_named_and_the_rest_is_prepared(how, message, prepared, capsys):
    first, *_, utterance = build(prepared=prepared)
    path = Path(f"vox/raw_audios/original/2019/{TEST_SESSION}_original.ogg")
    other = path.with_name("20190111-0900-PLENARY-1_original.ogg")
    if prepared:
        path = Path(f"vox/transcribed_data/de/2019/{utterance.id}.ogg")
        other = path.with_name(f"{first.id}.ogg")
    miniature.damage_audio(other, how)
    assert run() == 3  # A training utterance.
    miniature.damage_audio(path, how)
    status = run()
    lines = problems(capsys)
    assert all(message in line for line in lines)
    if not prepared:
        # Its only test session: nothing is left to test on.
        assert status == 1 and len(lines) == 4 + 4 + 4
        return
    assert status == 3 and len(lines) == 1 + 1 + 1
    assert f"{path}: {key_of(utterance)}: " in lines[-1]
    assert len(tables("test_de")["text"]) == 3 and len(tables("train_de")["text"]) == 15
    assert list(tables("test_de")["bad_utterances"]) == [key_of(utterance)]
    assert validate_data_dir("data/test_de") == []


def test_long_utterances_stay_in_the_test_set_only(capsys):
    build()
    assert run("--max_train_s", "1.6") == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "train_de: 12 utterances" in captured.err
    assert "4 above 1.6 s left out" in captured.err
    assert [len(tables(f"{name}_de")["text"]) for name in ("train", "dev", "test")] == [12, 3, 4]


@cases(
    (["--voxpopuli", "nowhere"], "--voxpopuli nowhere: is no folder"),
    (["--voxpopuli", "."], "has neither asr_de.tsv.gz nor asr_train.tsv"),
    (["--setup", "self_supervised"], "has no <year>/<session>_de.ogg of 2019 2020"),
    (["--lang", "xx"], "argument --lang: invalid choice: 'xx'"),
)
def test_user_errors_are_one_line(options, message, capsys):
    build()
    assert run(*options) in (1, 2)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in last and "error: " in last


def test_damaged_tables_are_named(capsys):
    build()
    path = Path("vox/transcribed_data/de/asr_de.tsv.gz")
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"no gzip", b""):
        path.write_bytes(data)
        assert run() == 1
        assert f"{path}: " in capsys.readouterr().err.strip().splitlines()[-1]
    assert_refused("missing.tsv: cannot be read", list, read_rows(Path("missing.tsv"), "\t"))


@cases(
    ("[(0.5, 1.25), (2.0, 3.5)]", (0.5, 3.5)), ("[[0, 1], [1, 2]]", (0, 2)),
    ("[('0.5', '1.5')]", (0.5, 1.5)), ("[(3, 4), (1, 2)]", None), ("[(-1, 2)]", None),
    ("[(0, 1e999)]", None), ("__import__('os')", None), ("[1, 2]", None), ("", None),
)  # fmt: skip
def test_speech_times(value, times):
    if times is not None:
        assert parse_vad(value) == times
        return
    with pytest.raises(ValueError, match="has (impossible times|times that are no list)"):
        parse_vad(value)
