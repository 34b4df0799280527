"""Which of a model's own texts are trained on: planted texts, places, ties, and nothing lost."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.data_dir import ValidationOptions, make_spk2utt, validate_data_dir
from espnet_medusa.kaldi.segments import Segment
from espnet_medusa.kaldi.table import read_table, sort_ids, write_table
from espnet_medusa.recipe.pseudo_labels import (
    EMPTY,
    HELD_OUT_ID,
    HELD_OUT_TIME,
    MISFIT,
    NO_HYPOTHESIS,
    LabelledAudio,
    SelectionOptions,
    choose_sessions,
    find_held_out,
    find_misfits,
    length_residuals,
    read_labelled,
    read_places,
    select,
)
from espnet_medusa.stages import select_pseudo_labels

SESSION_S = 100.0


def utterance(n_characters: int | None, duration_s: float = 10.0, place: Segment | None = None):
    text = None if n_characters is None else "a" * n_characters
    return LabelledAudio(text, duration_s, place or Segment("s", 0.0, duration_s))


def natural(count: int, n_sessions: int = 10) -> dict[str, LabelledAudio]:
    """Texts of 12 to 16 characters a second."""
    result = {}
    for i in range(count):
        duration_s = 2.0 + i % 25
        start_s = SESSION_S * (i // n_sessions)
        place = Segment(f"session{i % n_sessions}", start_s, start_s + duration_s)
        n_characters = round(duration_s * (12 + 4 * (i * 7 % 100) / 100))
        result[f"utt{i:04d}"] = utterance(n_characters, duration_s, place)
    return result


def replaced(utterances, key, text):
    old = utterances[key]
    utterances[key] = LabelledAudio(text, old.duration_s, old.place)


def test_planted_long_and_short_texts_go_and_exactly_5_percent():
    utterances = natural(200)
    # As Whisper errs: it repeats itself, or gives up.
    planted = {f"utt{i:04d}" for i in range(0, 200, 20)}
    for i, key in enumerate(sorted(planted)):
        length = len(utterances[key].text)
        replaced(utterances, key, "x" * (length * 3 if i % 2 else max(1, length // 3)))
    result = select(utterances, {}, SelectionOptions(valid_fraction=0))
    assert set(result.dropped) == planted and len(planted) == 10
    assert result.counts() == {MISFIT: 10}
    assert sorted(result.train) == sorted(set(utterances) - planted)
    times = {key: float(result.dropped[key].split()[2]) for key in planted}
    assert all(2 < time < 4 or 0.2 < time < 0.5 for time in times.values())


def test_filter_is_two_sided_and_judges_length_against_seconds():
    utterances = {f"u{i}": utterance(140, 10.0) for i in range(18)}
    # Twice too long is as odd as half too short; long audio may have a long text.
    utterances |= {"long": utterance(281, 10.0), "short": utterance(70, 10.0)}
    utterances |= {"slow": utterance(420, 30.0), "brief": utterance(14, 1.0)}
    residuals = length_residuals(utterances)
    assert residuals["long"] == pytest.approx(math.log(281 / 140))
    assert residuals["short"] == pytest.approx(-math.log(2))
    assert residuals["slow"] == residuals["brief"] == pytest.approx(0)
    assert find_misfits(residuals, 0.05) == ["long"]
    assert set(find_misfits(residuals, 0.1)) == {"long", "short"}


def test_many_odd_texts_do_not_move_what_is_usual():
    utterances = {f"u{i:02d}": utterance(140) for i in range(60)}
    utterances |= {f"v{i:02d}": utterance(4000) for i in range(40)}
    residuals = length_residuals(utterances)
    assert all(residuals[f"u{i:02d}"] == 0 for i in range(60))


@pytest.mark.parametrize(
    ("count", "fraction", "n_dropped"),
    [
        *((0, 0.05, 0), (1, 0.05, 0), (19, 0.05, 0), (20, 0.05, 1), (39, 0.05, 1), (100, 0.05, 5)),
        *((140, 0.05, 7), (30, 0.0, 0), (29, 0.1, 2), (100, 0.57, 57)),
    ],
)
def test_share_is_rounded_down_to_utterances(count, fraction, n_dropped):
    residuals = length_residuals(natural(count))
    assert len(find_misfits(residuals, fraction)) == n_dropped


def test_of_fewer_than_20_all_stay_however_odd():
    utterances = natural(19)
    replaced(utterances, "utt0007", "x" * 9999)
    assert MISFIT not in select(utterances, {}).counts()
    utterances["utt0019"] = utterance(140, place=Segment("session3", 300, 310))
    assert list(select(utterances, {}).dropped) == ["utt0007"]


def test_ties_are_broken_by_id_not_by_order_or_rounding():
    one = {key: utterance(140) for key in "fedcba"} | {"long": utterance(280)}
    one |= {"short": utterance(70)}
    for utterances in (one, dict(reversed(one.items()))):
        residuals = length_residuals(utterances)
        assert find_misfits(residuals, 1 / 8) == ["long"]
        assert find_misfits(residuals, 3 / 8) == ["long", "short", "a"]
    # Twice and half as long as usual are equally odd, though their logarithms differ by 7e-16.
    equal = {key: utterance(100) for key in "uvwxyz"} | {"b": utterance(50), "a": utterance(200)}
    assert find_misfits(length_residuals(equal), 1 / 8) == ["a"]
    equal = {key: utterance(140) for key in "uvwxyz"} | {"b": utterance(280), "a": utterance(70)}
    assert find_misfits(length_residuals(equal), 1 / 8) == ["a"]


def test_texts_are_missing_or_empty_and_counted_before_the_share():
    utterances = natural(103)
    utterances["utt0005"] = LabelledAudio(None, 5.0, Segment("session5", 0, 5))
    utterances["utt0006"] = LabelledAudio("", 5.0, Segment("session6", 0, 5))
    utterances["utt0007"] = LabelledAudio("", 5.0, Segment("session7", 0, 5))
    result = select(utterances, {})
    assert result.dropped["utt0005"] == NO_HYPOTHESIS
    assert result.counts() == {NO_HYPOTHESIS: 1, EMPTY: 2, MISFIT: 5}
    assert len(result.train) + len(result.valid) == 95


def test_test_set_goes_by_id_and_by_session_and_time():
    place = {
        "before": Segment("s", 0, 10),
        "touches": Segment("s", 10, 20),
        "overlaps": Segment("s", 15, 20.001),
        "inside": Segment("s", 22, 23),
        "around": Segment("s", 10, 40),
        "behind": Segment("s", 30, 40),
        "elsewhere": Segment("t", 22, 23),
        "same_id": Segment("t", 50, 60),
        "whole": Segment("u", 5000, 5010),
    }
    utterances = {key: utterance(140, 10.0, value) for key, value in place.items()}
    held_out = {
        "test1": Segment("s", 20, 30),
        "same_id": Segment("elsewhere", 0, 1),
        "test2": Segment("u", 0, -1),
    }
    assert find_held_out(utterances, held_out) == {
        "overlaps": f"{HELD_OUT_TIME}: test1",
        "inside": f"{HELD_OUT_TIME}: test1",
        "around": f"{HELD_OUT_TIME}: test1",
        "same_id": HELD_OUT_ID,
        "whole": f"{HELD_OUT_TIME}: test2",
    }


def test_what_only_resembles_the_test_set_stays():
    session = "20190201-0900-PLENARY-15"
    places = {
        # Names that begin alike, the same time in another session, the same day.
        f"{session}_cs_1": Segment("20190201-0900-PLENARY-1", 20, 30),
        f"{session}-a_cs_1": Segment(f"{session}-a", 20, 30),
        "20190201-1500-PLENARY-15_cs_1": Segment("20190201-1500-PLENARY-15", 20, 30),
        # The next words of the same speaker.
        f"{session}_cs_2": Segment(session, 32.001, 40),
        # These are of it: other names and other cuts of the same time.
        f"{session}_cs_3": Segment(session, 31.999, 40),
        f"{session}_cs_0000000-0002000": Segment(session, 0, 18.001),
        f"{session}_cs_4": Segment(session, 24, 24.5),
    }
    utterances = {key: utterance(140, 10.0, place) for key, place in places.items()}
    held_out = {f"112233-{session}-cs_20190201-16:10:06_5": Segment(session, 20, 30)}
    options = SelectionOptions(valid_fraction=0, margin_s=2.0)
    result = select(utterances, held_out, options)
    assert result.dropped == dict.fromkeys(
        list(places)[4:], f"{HELD_OUT_TIME}: {list(held_out)[0]}"
    )
    assert result.train == sort_ids(list(places)[:4])
    # Without a margin what touches is enough.
    result = select(utterances, held_out, SelectionOptions(valid_fraction=0, margin_s=0.0))
    assert list(result.dropped) == [f"{session}_cs_4"]


def test_test_set_does_not_count_for_what_is_usual():
    utterances = natural(100)
    odd = {
        f"test{i}": utterance(9000, 10.0, Segment("test", 20 * i, 20 * i + 10)) for i in range(90)
    }
    held_out = {"a": Segment("test", 0, -1)}
    alone, together = select(utterances, {}), select(utterances | odd, held_out)
    assert together.train == alone.train and together.valid == alone.valid
    assert together.counts()[HELD_OUT_TIME] == 90


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_is_lost_and_sessions_stay_whole(data):
    texts = st.one_of(st.none(), st.text("ab ", max_size=40).map(lambda s: " ".join(s.split())))
    sessions = st.sampled_from(["s1", "s2", "s3", "s4"])
    utterances = {}
    for i in range(data.draw(st.integers(4, 60))):
        start_s = data.draw(st.integers(0, 90))
        place = Segment(data.draw(sessions), start_s, start_s + 5)
        utterances[f"u{i}"] = LabelledAudio(data.draw(texts), 5.0, place)
    held_out = {"t": Segment("s1", 30, 40)}
    try:
        result = select(utterances, held_out, SelectionOptions(0.05, 0.2))
    except InputError:
        return  # Nothing left, or a single session.
    parts = [set(result.train), set(result.valid), set(result.dropped)]
    assert set.union(*parts) == set(utterances)
    assert sum(map(len, parts)) == len(utterances)
    n_usable = len(utterances) - sum(
        count for reason, count in result.counts().items() if reason != MISFIT
    )
    assert result.counts()[MISFIT] == n_usable // 20
    train_sessions = {utterances[key].place.recording for key in result.train}
    assert train_sessions.isdisjoint(utterances[key].place.recording for key in result.valid)


def test_validation_sessions_are_enough_and_always_the_same():
    sessions = [f"session{i % 40}" for i in range(400)]
    chosen = choose_sessions(sessions, 0.05)
    assert sum(name in chosen for name in sessions) == 20
    assert choose_sessions(reversed(sessions), 0.05) == chosen
    assert chosen < choose_sessions(sessions, 0.2)
    assert chosen != {"session0", "session1"}
    assert choose_sessions(sessions, 0) == set()
    with pytest.raises(InputError, match="1 sessions cannot be divided.*--valid_fraction"):
        choose_sessions(["only"] * 5, 0.05)


# Data directories -----------------------------------------------------------------------------


def write_unlabelled(folder: Path, utterances: dict[str, LabelledAudio]) -> Path:
    segments = {
        key: f"{u.place.recording} {u.place.start_s} {u.place.end_s}"
        for key, u in utterances.items()
    }
    folder.mkdir(parents=True)
    write_table(folder / "segments", segments)
    write_table(folder / "utt2session", segments)
    write_table(folder / "utt2spk", {key: u.place.recording for key, u in utterances.items()})
    write_table(folder / "spk2utt", make_spk2utt(read_table(folder / "utt2spk")))
    write_table(folder / "utt2lang", dict.fromkeys(utterances, "cs"))
    recordings = {u.place.recording for u in utterances.values()}
    write_table(folder / "wav.scp", {name: f"audio/{name}_cs.ogg" for name in recordings})
    return folder


def run_select(tmp_path: Path, *more: str) -> None:
    options = {"data_dir": "unlabelled", "text": "text", "held_out": "test"}
    options |= {"train_dir": "train", "valid_dir": "dev"}
    cmd = [word for name, path in options.items() for word in (f"--{name}", str(tmp_path / path))]
    select_pseudo_labels.main([*cmd, *more])


def prepare_command(tmp_path: Path) -> dict[str, LabelledAudio]:
    utterances = natural(120, n_sessions=12)
    write_unlabelled(tmp_path / "unlabelled", utterances)
    texts = {key: u.text for key, u in utterances.items()}
    texts["utt0001"] *= 5
    texts["utt0002"] = ""
    del texts["utt0003"]
    write_table(tmp_path / "text", texts)
    start_s, end_s = utterances["utt0004"].place.start_s, utterances["utt0004"].place.end_s
    (tmp_path / "test").mkdir()
    write_table(tmp_path / "test" / "utt2session", {"t": f"session4 {end_s - 1} {start_s + 90}"})
    return utterances


def test_command_writes_valid_data_directories(tmp_path, capsys):
    utterances = prepare_command(tmp_path)
    run_select(tmp_path)
    out = capsys.readouterr().out
    for line in (f"{NO_HYPOTHESIS}: 1", f"{EMPTY}: 1", f"{HELD_OUT_TIME}: 1", f"{MISFIT}: 5"):
        assert line in out
    dropped = read_table(tmp_path / "train" / "dropped_utterances")
    assert {"utt0001", "utt0002", "utt0003", "utt0004"} <= set(dropped) and len(dropped) == 8
    kept = {}
    for name in ("train", "dev"):
        options = ValidationOptions(check_audio_files=False, check_speaker_order=False)
        assert validate_data_dir(tmp_path / name, options=options) == []
        text = read_table(tmp_path / name / "text")
        assert read_table(tmp_path / name / "utt2lang") == dict.fromkeys(text, "cs")
        kept |= text
    assert len(kept) == 112 and not set(kept) & set(dropped)
    assert all(kept[key] == utterances[key].text for key in kept)
    train, dev = (set(read_table(tmp_path / n / "wav.scp")) for n in ("train", "dev"))
    assert train and dev and not train & dev


def test_command_again_leaves_nothing_of_the_first(tmp_path):
    prepare_command(tmp_path)
    run_select(tmp_path)
    run_select(tmp_path, "--drop_fraction", "0.5", "--valid_fraction", "0.3")
    counts = [len(read_table(tmp_path / name / "text")) for name in ("train", "dev")]
    assert sum(counts) == 117 - 58
    for name, count in zip(("train", "dev"), counts, strict=True):
        assert len(read_table(tmp_path / name / "segments")) == count


def fails(capsys, tmp_path: Path, *more: str) -> str:
    with pytest.raises(SystemExit) as stop:
        run_select(tmp_path, *more)
    assert stop.value.code == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_user_errors_are_one_line(tmp_path, capsys):
    prepare_command(tmp_path)
    assert "drop_fraction 1.5: must be" in fails(capsys, tmp_path, "--drop_fraction", "1.5")
    assert "margin_s nan: must be" in fails(capsys, tmp_path, "--margin_s", "nan")
    assert "makes no --valid_dir" in fails(capsys, tmp_path, "--valid_fraction", "0")
    write_table(tmp_path / "text", {"other": "words"})
    assert "none of 120 utterances is left (120 no hypothesis)" in fails(capsys, tmp_path)
    (tmp_path / "test" / "utt2session").unlink()
    assert "neither utt2session nor segments" in fails(capsys, tmp_path)
    (tmp_path / "text").unlink()
    assert f"{tmp_path}/text: cannot be read" in fails(capsys, tmp_path)


def test_durations_come_from_segments_or_utt2dur(tmp_path):
    utterances = natural(3)
    folder = write_unlabelled(tmp_path / "data", utterances)
    write_table(tmp_path / "text", {"utt0000": "a  b "})
    read = read_labelled(folder, tmp_path / "text")
    assert read["utt0000"] == LabelledAudio("a b", 2.0, utterances["utt0000"].place)
    assert read["utt0001"].text is None
    (folder / "segments").unlink()
    with pytest.raises(InputError, match="neither segments nor utt2dur"):
        read_labelled(folder, tmp_path / "text")
    write_table(folder / "utt2dur", {key: "7.5" for key in utterances})
    assert read_labelled(folder, tmp_path / "text")["utt0002"].duration_s == 7.5
    write_table(folder / "utt2dur", {key: "0" for key in utterances})
    with pytest.raises(InputError, match="utt0000: has no duration above 0 s"):
        read_labelled(folder, tmp_path / "text")
    write_table(folder / "utt2session", {"utt0000": "session 5 1"})
    with pytest.raises(InputError, match="utt2session: utt0000: ends at 1 s"):
        read_places(folder)
