"""VoxPopuli's data preparation on miniatures in its exact layout, good and damaged."""

import functools
import http.server
import os
import threading
from pathlib import Path

import numpy as np
import prepare_voxpopuli
import pytest
import voxpopuli_miniature as miniature
from voxpopuli_miniature import build_voxpopuli, plan_voxpopuli
from voxpopuli_transcripts import parse_vad, read_rows

from espnet_medusa.audio.reader import read_audio
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.data_dir import (
    Segment,
    ValidationOptions,
    parse_segment,
    validate_data_dir,
)
from espnet_medusa.kaldi.table import DataProblem, read_table

TEST_SESSION = "20190201-0900-PLENARY-15"


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*options: str, lang: str = "de") -> int:
    """The command's exit status."""
    try:
        prepare_voxpopuli.main(["--lang", lang, "--voxpopuli", "vox", "--nj", "2", *options])
    except SystemExit as stop:
        return stop.code
    return 0


def tables(name: str) -> dict[str, dict[str, str]]:
    return {path.name: read_table(path) for path in Path("data", name).iterdir() if path.is_file()}


def problems(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


def pitch_hz(samples: np.ndarray) -> float:
    """The strongest frequency."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * miniature.RATE_HZ / len(samples)


def key_of(utterance: miniature.MiniatureUtterance) -> str:
    return f"{utterance.columns['speaker_id']}-{utterance.id('de')}"


def rewrite(utterances) -> None:
    miniature.write_annotation(Path("vox"), "de", utterances)


# Transcribed --------------------------------------------------------------------------------


def test_sessions_become_segments_with_the_right_audio(capsys):
    build_voxpopuli(Path("vox"))
    assert run() == 0
    assert problems(capsys) == []
    for split, n_sessions in (("train", 4), ("dev", 1), ("test", 1)):
        assert validate_data_dir(f"data/{split}_de") == []
        found = tables(f"{split}_de")
        wanted = [u for u in plan_voxpopuli("de") if u.columns["split"] == split]
        assert len(wanted) == 4 * n_sessions == len(found["text"])
        assert len(found["wav.scp"]) == n_sessions
        assert found["utt2session"] == found["segments"]
        assert set(found["utt2lang"].values()) == {"de"}
        for utterance in wanted:
            key = key_of(utterance)
            assert found["text"][key] == utterance.columns["original_text"]
            assert found["utt2spk"][key] == utterance.columns["speaker_id"]
            segment = parse_segment(found["segments"][key])
            times = (utterance.session, utterance.start_s, utterance.end_s)
            assert (segment.recording, segment.start_s, segment.end_s) == times
            samples, rate_hz = read_audio(
                found["wav.scp"][utterance.session], start_s=segment.start_s, end_s=segment.end_s
            )
            assert rate_hz == 16000 and pitch_hz(samples) == pytest.approx(
                utterance.pitch_hz, abs=2
            )


def test_utterances_cut_by_get_asr_data_are_taken_as_they_are(capsys):
    build_voxpopuli(Path("vox"), prepared=True)
    assert run() == 0
    assert problems(capsys) == []
    for split in ("train", "dev", "test"):
        assert validate_data_dir(f"data/{split}_de") == []
        found = tables(f"{split}_de")
        assert "segments" not in found
        for utterance in plan_voxpopuli("de"):
            if utterance.columns["split"] == split:
                key = key_of(utterance)
                assert found["text"][key] == utterance.columns["original_text"]
                samples, _ = read_audio(found["wav.scp"][key])
                assert pitch_hz(samples) == pytest.approx(utterance.pitch_hz, abs=2)
                # The annotation still tells where it was.
                place = parse_segment(found["utt2session"][key])
                assert (place.recording, place.start_s) == (utterance.session, utterance.start_s)


def test_without_annotation_an_utterance_is_known_by_its_session():
    build_voxpopuli(Path("vox"), prepared=True)
    Path("vox/transcribed_data/de/asr_de.tsv.gz").unlink()
    # Before 2022 the scripts wrote six columns.
    miniature.write_prepared(
        Path("vox"), "de", plan_voxpopuli("de"), miniature.PREPARED_COLUMNS[:6]
    )
    assert run() == 0
    assert set(tables("test_de")["utt2session"].values()) == {f"{TEST_SESSION} 0.000 -1.000"}


def test_annotation_may_lie_as_on_the_server():
    build_voxpopuli(Path("vox"))
    Path("vox/annotations/asr").mkdir(parents=True)
    os.rename("vox/transcribed_data/de/asr_de.tsv.gz", "vox/annotations/asr/asr_de.tsv.gz")
    assert run() == 0
    assert len(tables("train_de")["text"]) == 16


@pytest.mark.parametrize("text", ["raw", "normalized"])
def test_other_text_serves_where_one_is_empty(text, capsys):
    build_voxpopuli(Path("vox"))
    utterances = plan_voxpopuli("de")
    utterances[0].columns["original_text"] = " "
    utterances[1].columns["normed_text"] = ""
    rewrite(utterances)
    assert run("--text", text) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "1 utterances have" in captured.err
    found = tables("train_de")["text"]
    assert found[key_of(utterances[0])] == utterances[0].columns["normed_text"]
    assert found[key_of(utterances[1])] == utterances[1].columns["original_text"]
    column = "original_text" if text == "raw" else "normed_text"
    assert found[key_of(utterances[2])] == utterances[2].columns[column]


def test_quotes_are_read_as_written_or_undone():
    build_voxpopuli(Path("vox"))
    utterances = plan_voxpopuli("de")
    texts = ['"Ja" sagte sie', '"Er sagte ""nein"" dazu"', 'Die "Frage" ist', '"', "None"]
    for utterance, text in zip(utterances, texts, strict=False):
        utterance.columns["original_text"] = text
    utterances[5].columns["speaker_id"] = "None"
    utterances[6].columns["original_text"] = "a\rb\u2028c"
    rewrite(utterances)
    assert run() == 0
    found = tables("train_de")
    read = [found["text"][key_of(utterance)] for utterance in utterances[:5]]
    assert found["text"][key_of(utterances[6])] == "a b c"
    assert read == [texts[0], 'Er sagte "nein" dazu', *texts[2:]]
    assert found["utt2spk"][f"unknown-{utterances[5].id('de')}"] == "unknown"
    assert validate_data_dir("data/train_de") == []


def test_bad_lines_are_named_and_the_others_go_on(capsys):
    build_voxpopuli(Path("vox"))
    utterances = plan_voxpopuli("de")
    changes = [
        ({"original_text": "", "normed_text": ""}, "has no transcript"),
        ({"vad": "[(1.0, oops)]"}, "has times that are no list of (start, end): [(1.0, oops)]"),
        ({"vad": "[(2.0, 1.0)]"}, "has impossible times: [(2.0, 1.0)]"),
        ({"vad": "[]"}, "has impossible times: []"),
        ({"vad": "[(1.0, 1.0)]"}, "lasts 0 s"),
        ({"vad": "[(8.0, 99.0)]"}, "ends at 99 s but its session at"),
    ]
    for utterance, (change, _) in zip(utterances, changes, strict=False):
        utterance.columns |= change
    twice, invalid = utterances[6], plan_voxpopuli("de")[8]
    invalid.columns["split"] = "invalid"
    rewrite([*utterances[:8], twice, invalid, *utterances[9:]])
    assert run() == 3
    lines = problems(capsys)
    assert len(lines) == len(changes) + 1
    for utterance, (_, message) in zip(utterances, changes, strict=False):
        line = next(line for line in lines if message in line)
        assert utterance.id("de") in line
    assert sum(f"{twice.id('de')}: occurs again in line 10" in line for line in lines) == 1
    kept = {key_of(u) for u in utterances[6:16]} - {key_of(utterances[8])}
    assert set(tables("train_de")["text"]) == kept
    assert len(tables("dev_de")["text"]) == len(tables("test_de")["text"]) == 4


def test_line_that_may_be_of_the_test_set_makes_it_incomplete(capsys):
    build_voxpopuli(Path("vox"))
    utterances = plan_voxpopuli("de")
    utterances[2].columns["original_text"] = "a|b"
    rewrite(utterances)
    assert run() == 3
    assert "line 4: has 13 columns, not 12" in problems(capsys)[0]
    assert len(tables("train_de")["text"]) == 15


def test_unusable_test_utterances_are_still_known_to_be_of_the_test_set(capsys):
    build_voxpopuli(Path("vox"))
    utterances = plan_voxpopuli("de")
    session = "20190202-0900-PLENARY-15"
    added = miniature.plan_session(session, "test", 4, 300, "de")
    path = miniature.write_session(Path("vox"), "original", session, added)
    damage_audio(path, "truncated")
    utterances[-1].columns |= {"original_text": "", "normed_text": ""}
    rewrite([*utterances, *added])
    assert run() == 3
    assert len(problems(capsys)) == 1 + 4
    found = tables("test_de")
    assert set(found["bad_utterances"]) == {utterances[-1].id("de"), *map(key_of, added)}
    assert len(found["text"]) == 3
    places = {key: parse_segment(value) for key, value in found["utt2session"].items()}
    assert len(places) == 3 + 4 + 1
    for utterance in added:
        place = places[key_of(utterance)]
        assert (place.recording, place.start_s) == (session, utterance.start_s)
    # Its times may be what is wrong in its line: all of the session is of the test set.
    assert places[utterances[-1].id("de")] == Segment(TEST_SESSION, 0, -1)
    assert validate_data_dir("data/test_de") == []


def damage_audio(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[: len(data) * 2 // 3])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(b"OggS is missing" * 20)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "cannot be read (No such file"),
        ("truncated", "is truncated"),
        ("empty", "is an empty file"),
        ("garbage", "is no audio that libsndfile or FFmpeg reads"),
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_bad_audio_is_named_and_the_others_go_on(prepared, how, message, capsys):
    build_voxpopuli(Path("vox"), prepared=prepared)
    utterance = plan_voxpopuli("de")[-1]
    path = Path(f"vox/raw_audios/original/2019/{TEST_SESSION}_original.ogg")
    other = path.with_name("20190111-0900-PLENARY-1_original.ogg")
    if prepared:
        path = Path(f"vox/transcribed_data/de/2019/{utterance.id('de')}.ogg")
        other = path.with_name(f"{plan_voxpopuli('de')[0].id('de')}.ogg")
    damage_audio(other, how)
    assert run() == 3  # A training utterance.
    damage_audio(path, how)
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
    build_voxpopuli(Path("vox"))
    assert run("--max_train_s", "1.6") == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "train_de: 12 utterances" in captured.err
    assert "4 above 1.6 s left out" in captured.err
    assert [len(tables(f"{name}_de")["text"]) for name in ("train", "dev", "test")] == [12, 3, 4]


def test_second_run_leaves_nothing_of_the_first():
    build_voxpopuli(Path("vox"))
    assert run() == 0
    build_voxpopuli(Path("vox"), prepared=True)
    assert run() == 0
    assert "segments" not in tables("train_de")
    assert validate_data_dir("data/train_de") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--voxpopuli", "nowhere"], "--voxpopuli nowhere: is no folder"),
        (["--voxpopuli", "."], "holds neither asr_de.tsv.gz nor asr_train.tsv"),
        (["--setup", "self_supervised"], "holds no <year>/<session>_de.ogg of 2019 2020"),
        (["--lang", "xx"], "argument --lang: invalid choice: 'xx'"),
    ],
)
def test_user_errors_are_one_line(options, message, capsys):
    build_voxpopuli(Path("vox"))
    capsys.readouterr()
    assert run(*options) in (1, 2)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in last and "error: " in last


def test_damaged_tables_are_named(capsys):
    build_voxpopuli(Path("vox"))
    path = Path("vox/transcribed_data/de/asr_de.tsv.gz")
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"no gzip", b""):
        path.write_bytes(data)
        assert run() == 1
        assert f"{path}: " in capsys.readouterr().err.strip().splitlines()[-1]
    with pytest.raises(InputError, match="missing.tsv: cannot be read"):
        list(read_rows(Path("missing.tsv"), "\t"))


@pytest.mark.parametrize(
    ("value", "times"),
    [
        ("[(0.5, 1.25), (2.0, 3.5)]", (0.5, 3.5)),
        ("[[0, 1], [1, 2]]", (0, 2)),
        ("[('0.5', '1.5')]", (0.5, 1.5)),
        ("[(3, 4), (1, 2)]", None),
        ("[(-1, 2)]", None),
        ("[(0, 1e999)]", None),
        ("__import__('os')", None),
        ("[1, 2]", None),
        ("", None),
    ],
)
def test_speech_times(value, times):
    if times is not None:
        assert parse_vad(value) == times
        return
    with pytest.raises(ValueError, match="has (impossible times|times that are no list)"):
        parse_vad(value)


# Unlabelled ---------------------------------------------------------------------------------


def run_unlabelled(*options: str) -> int:
    chosen = ["--setup", "self_supervised", "--segmentation", "auto", "--valid_fraction", "0"]
    return run(*chosen, *options)


def by_session(segments: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for value in segments.values():
        segment = parse_segment(value)
        found.setdefault(segment.recording, []).append((segment.start_s, segment.end_s))
    return found


def validate_unlabelled() -> list[DataProblem]:
    return validate_data_dir("data/unlabelled_de", options=ValidationOptions(require_text=False))


def test_unlabelled_sessions_have_official_segments_or_are_cut_at_silences(capsys):
    build_voxpopuli(Path("vox"), unlabelled_sessions=3)
    assert run_unlabelled() == 0
    assert problems(capsys) == []
    assert validate_unlabelled() == []
    assert sorted(os.listdir("data")) == ["test_de", "train_de_unlabelled", "unlabelled_de"]
    found = tables("unlabelled_de")
    assert "text" not in found and found["utt2session"] == found["segments"]
    assert found["wav.scp"][TEST_SESSION].endswith(f"raw_audios/de/2019/{TEST_SESSION}_de.ogg")
    sessions = by_session(found["segments"])
    assert len(sessions) == 4
    official = "20190301-0900-PLENARY-0"
    assert sessions[official] == [(0.3, 1.5), (2.2, 3.65), (4.35, 6.05), (6.75, 8.7)]
    assert f"{official}_de_0" in found["segments"]
    # The others are cut in pauses: all sound lies in a segment, faded by its margin.
    for session in ("20190302-0900-PLENARY-1", TEST_SESSION):
        for utterance in miniature.plan_session(session, "", 4, 150, "de"):
            assert any(
                start <= utterance.start_s and utterance.end_s <= end
                for start, end in sessions[session]
            )


def test_unlabelled_audio_is_divided_without_the_test_set(capsys):
    build_voxpopuli(Path("vox"), unlabelled_sessions=3)
    assert run_unlabelled("--valid_fraction", "0.2") == 0
    every = tables("unlabelled_de")["segments"]
    train, dev = (tables(f"{name}_de_unlabelled") for name in ("train", "dev"))
    dropped = train["dropped_utterances"]
    assert dropped.keys() == {key for key in every if key.startswith(TEST_SESSION)}
    assert train["segments"] | dev["segments"] == {
        key: value for key, value in every.items() if key not in dropped
    }
    sessions = [by_session(part["segments"]).keys() for part in (train, dev)]
    assert sessions[0] and sessions[1] and not sessions[0] & sessions[1]
    options = ValidationOptions(require_text=False)
    for name in ("train", "dev"):
        assert validate_data_dir(f"data/{name}_de_unlabelled", options=options) == []
    assert run_unlabelled("--margin_s", "-1") == 1
    assert "margin_s -1.0: must be 0 or more" in capsys.readouterr().err
    assert run_unlabelled("--valid_fraction", "0.99") == 1
    assert "3 sessions cannot be divided" in capsys.readouterr().err


def test_segments_at_silences_only():
    build_voxpopuli(Path("vox"), unlabelled_sessions=1)
    assert run_unlabelled("--segmentation", "silence", "--max_segment_s", "3") == 0
    for session, times in by_session(tables("unlabelled_de")["segments"]).items():
        utterances = miniature.plan_session(session, "", 4, 150, "de")
        # A pause of 0.9 s and 1 s of sound beside another do not fit into 3 s with margins.
        assert len(times) == 4
        for (start_s, end_s), utterance in zip(sorted(times), utterances, strict=True):
            assert start_s == pytest.approx(utterance.start_s - 0.15, abs=0.06)
            assert end_s == pytest.approx(utterance.end_s + 0.15, abs=0.06)


def test_official_segments_only_and_long_ones_are_cut():
    build_voxpopuli(Path("vox"), unlabelled_sessions=2)
    session = "20190301-0900-PLENARY-0"
    event = f"{session}_de"
    miniature.write_segment_table(Path("vox"), [(event, "0", "0.0", "8.5"), (event, "1", "8", "9")])
    assert run_unlabelled("--segmentation", "official", "--max_segment_s", "4") == 0
    found = tables("unlabelled_de")["segments"]
    assert list(by_session(found)) == [session]
    times = sorted(by_session(found)[session])
    assert times[-1] == (8, 9) and f"{event}_1" in found
    assert all(end - start <= 4 for start, end in times)
    for utterance in miniature.plan_session(session, "", 4, 150, "de")[:3]:
        assert any(s <= utterance.start_s and utterance.end_s <= e for s, e in times)
    Path("vox/unlabelled_data/unlabelled_v2.tsv.gz").unlink()
    assert run_unlabelled("--segmentation", "official") == 1


def test_bad_unlabelled_segments_and_sessions_are_named(capsys):
    build_voxpopuli(Path("vox"), unlabelled_sessions=4)
    good, bad = "20190301-0900-PLENARY-0", "20190302-0900-PLENARY-1"
    rows = [
        (f"{good}_de", "0", "1", "2"),
        (f"{good}_de", "1", "2", "1"),
        (f"{good}_de", "2", "x", "1"),
        (f"{good}_de", "3", "1", "77"),
        (f"{good}_fr", "4", "1", "2"),
        ("20190305-0900-PLENARY-9_de", "0", "1", "2"),
        ("20190305-0900-ENVI_de", "0", "1", "2"),
        ("20120305-0900-PLENARY-9_de", "0", "1", "2"),
    ]
    miniature.write_segment_table(Path("vox"), rows)
    damage_audio(Path(f"vox/raw_audios/de/2019/{bad}_de.ogg"), "truncated")
    assert run_unlabelled() == 3
    lines = problems(capsys)
    for message in (
        "line 3: has impossible times: 2 1",
        "line 4: has times that are no numbers: x 1",
        f"{good}_de_3: ends at 77.0 s but the session at",
        "20190305-0900-PLENARY-9: its audio is missing (1 segments)",
        f"{bad}: is truncated",
    ):
        assert sum(message in line for line in lines) == 1
    assert len(lines) == 5
    sessions = by_session(tables("unlabelled_de")["segments"])
    assert sessions[good] == [(1, 2)] and len(sessions) == 4 and bad not in sessions
    assert validate_unlabelled() == []


def test_years_choose_unlabelled_sessions():
    build_voxpopuli(Path("vox"), unlabelled_sessions=1)
    session = "20100301-0900-PLENARY-1"
    miniature.write_session(
        Path("vox"), "de", session, miniature.plan_session(session, "", 2, 300, "de")
    )
    assert run_unlabelled("--years", "2010") == 0
    assert list(tables("unlabelled_de")["wav.scp"]) == [session]


def test_silent_session_is_named(capsys):
    build_voxpopuli(Path("vox"), unlabelled_sessions=1)
    path = Path("vox/raw_audios/de/2019/20190301-0900-PLENARY-7_de.ogg")
    miniature.write_ogg(path, np.zeros(5 * miniature.RATE_HZ))
    assert run_unlabelled() == 3
    assert problems(capsys)[0].startswith(f"{path}: 20190301-0900-PLENARY-7: holds no sound;")


# Download -----------------------------------------------------------------------------------


@pytest.fixture
def server():
    """A server of the folder `www`, and the paths that it was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    handler = functools.partial(Handler, directory="www")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def test_missing_corpus_is_downloaded_once(server):
    url, asked = server
    source = build_voxpopuli(Path("source"), unlabelled_sessions=2)
    for folder in ("www/annotations/asr", "www/audios"):
        Path(folder).mkdir(parents=True)
    os.rename(source / "transcribed_data/de/asr_de.tsv.gz", "www/annotations/asr/asr_de.tsv.gz")
    table = "unlabelled_v2.tsv.gz"
    os.rename(source / "unlabelled_data" / table, f"www/annotations/{table}")
    for channel in ("original", "de"):
        miniature.archive_year(source, channel, "2019", Path(f"www/audios/{channel}_2019.tar"))
    options = ["--lang", "de", "--setup", "self_supervised", "--base_url", url, "--years", "2019"]
    options += ["--segmentation", "auto"]
    prepare_voxpopuli.main(options)
    wanted = {
        *("/annotations/asr/asr_de.tsv.gz", f"/annotations/{table}"),
        *("/audios/original_2019.tar", "/audios/de_2019.tar"),
    }
    assert set(asked) == wanted
    first = tables("unlabelled_de")
    assert len(first["wav.scp"]) == 3 and len(tables("test_de")["text"]) == 4
    assert not list(Path("downloads").rglob("*.tar"))
    del asked[:]
    prepare_voxpopuli.main(options)
    assert asked == [] and tables("unlabelled_de") == first
