"""asr.sh: test sets that cannot be used, that change, and that are also used for training."""

import shutil

from recipes import link_template, run, write_set

from espnet_medusa.data.kaldi.table import read_table

SEARCH = "search: greedy\nmaxlenratio: -8\n"


def link_with_experiment(folder, experiment, **sets: int):
    """Link asr.sh, copy a tiny experiment, and write test sets of so many utterances."""
    link_template(folder)
    shutil.copytree(experiment.folder, folder / "exp" / "tiny")
    (folder / "conf").mkdir()
    (folder / "conf" / "greedy.yaml").write_text(SEARCH)
    for name, count in sets.items():
        write_set(folder / "own" / name, count)
    options = ["--data_dir", "own", "--skip_train", "true", "--asr_exp", "exp/tiny", "--ngpu", "0"]
    options += ["--inference_asr_model", "model.pth", "--inference_config", "conf/greedy.yaml"]
    options += ["--token_type", "char", "--nj", "1", "--test_sets", " ".join(sets)]
    return options, folder / "exp" / "tiny" / "greedy_asr_model_model"


def test_bad_test_sets_do_not_stop_the_others(experiment, tmp_path):
    sets = {"silent": 1, "empty": 1, "textless": 1, "broken": 2, "good": 2}
    options, results = link_with_experiment(tmp_path, experiment, **sets)
    (tmp_path / "own" / "silent" / "s-u0.wav").write_bytes(b"no audio")
    (tmp_path / "own" / "empty" / "wav.scp").write_text("")
    (tmp_path / "own" / "textless" / "text").unlink()
    done = run(tmp_path, "./asr.sh", *options, "--inference_nj", "1", "--stop_stage", "3", status=3)
    formatted = tmp_path / "dump" / "raw"
    assert sorted(path.name for path in formatted.glob("[a-z]*")) == ["broken", "good"]
    for name in ("silent", "empty", "textless"):
        assert f"stage 3: own/{name} was not formatted, see above" in done.stderr
    (formatted / "broken" / "wav.scp").write_text("")
    done = run(tmp_path, "./asr.sh", *options, "--inference_nj", "1", "--stage", "12", status=3)
    assert f"stage 12: {results.relative_to(tmp_path)}/broken was not decoded" in done.stderr
    assert "stage 3: dump/raw/silent/wav.scp is not there" in done.stderr
    assert (results / "good" / "score_wer" / "result.txt").is_file()
    # Without a usable set, the script stops with an error.
    (formatted / "good" / "wav.scp").write_text("")
    done = run(tmp_path, "./asr.sh", *options, "--inference_nj", "1", "--stage", "12", status=1)
    assert "Stage 13" not in done.stdout


def test_repaired_audio_and_another_number_of_jobs_keep_the_other_results(experiment, tmp_path):
    options, results = link_with_experiment(tmp_path, experiment, test=4)
    broken = tmp_path / "own" / "test" / "s-u1.wav"
    audio = broken.read_bytes()
    broken.write_bytes(b"no audio")
    run(tmp_path, "./asr.sh", *options, "--inference_nj", "1", status=3)
    broken.write_bytes(audio)
    done = run(tmp_path, "./asr.sh", *options, "--inference_nj", "2", status=0)
    assert "number of jobs (2); 3 of 4 utterances keep their results" in done.stderr
    logs = [(results / "test/logdir" / f"asr_inference.{job}.log").read_text() for job in (1, 2)]
    assert "resumed: 1 of 2 utterances" in logs[0] and "resumed: 2 of 2 utterances" in logs[1]
    assert len(read_table(results / "test" / "text", require_value=False)) == 4
    done = run(tmp_path, "./asr.sh", *options, "--inference_nj", "2", "--stage", "12", status=0)
    assert "4/4 utterances (4 of an earlier run)" in done.stderr


def test_a_training_or_validation_set_is_not_pruned_as_a_test_set(tmp_path):
    link_template(tmp_path)
    for name, count in {"train": 3, "dev": 4, "test": 2}.items():
        write_set(tmp_path / "own" / name, count)  # of 0.5, 0.6, ... s
    options = ["--data_dir", "own", "--nj", "1", "--ngpu", "0", "--token_type", "word"]
    options += ["--test_sets", "dev test train", "--max_wav_duration", "0.65"]
    trained = ["--train_set", "train", "--valid_set", "dev"]
    run(tmp_path, "./asr.sh", *options, *trained, "--stop_stage", "4", status=0)
    sizes = {"org/train": 3, "train": 2, "org/dev": 4, "dev": 2, "test": 2}

    def check_sizes() -> None:
        features = tmp_path / "dump" / "raw"
        assert {name: len(read_table(features / name / "wav.scp")) for name in sizes} == sizes

    check_sizes()
    decoded = ["--stage", "12", "--stop_stage", "12", "--python", "false", "--asr_exp", "exp"]
    for more in (trained, ["--skip_train", "true"], [*trained, "--eval_valid_set", "true"]):
        done = run(tmp_path, "./asr.sh", *options, *more, *decoded, status=1)
        shown = [line.split()[-2] for line in done.stdout.splitlines() if ") Decoding" in line]
        assert shown == ["org/dev:", "test:", "org/train:"]
    # A run of the test sets alone leaves the pruned sets to training.
    run(tmp_path, "./asr.sh", *options, "--skip_train", "true", "--stop_stage", "3", status=0)
    check_sizes()


def test_lm_train_text_may_be_several_files(tmp_path):
    link_template(tmp_path)
    (tmp_path / "A").write_text("u1 one\n")
    (tmp_path / "B").write_text("u1 two\nu2 three\n")
    options = ["--train_set", "t", "--valid_set", "v", "--skip_eval", "true", "--use_lm", "true"]
    options += ["--ngpu", "0", "--nj", "1", "--python", "false", "--stage", "6"]
    valid = tmp_path / "dump" / "raw" / "v" / "text"
    valid.parent.mkdir(parents=True)
    valid.write_text("u3 four\n")
    run(tmp_path, "./asr.sh", *options, "--lm_train_text", "A B", status=1)
    (log,) = tmp_path.glob("exp/lm_stats_*/logdir/stats.1.log")
    joined = "dump/raw/lm_train.txt"
    assert f"--train_data_path_and_name_and_type {joined},text,text" in log.read_text()
    assert read_table(tmp_path / joined) == {"u1": "one", "u1-2": "two", "u2": "three"}
    # A name with a blank is one file.
    (tmp_path / "A").rename(tmp_path / "A B")
    run(tmp_path, "./asr.sh", *options, "--lm_train_text", "A B", status=1)
    assert "name_and_type A B,text,text" in log.read_text()
