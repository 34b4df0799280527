"""asr.sh: its options, and all stages from Kaldi directories to RESULTS.md by ESPnet's modules."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import cases
from recipes import (
    TEMPLATE,
    TRAINING,
    link_recipe,
    link_template,
    record_asr,
    recorded,
    run,
    write_script,
    write_set,
)

from espnet_medusa.data.kaldi.table import read_table


def write_parser(folder: Path, parser: str) -> Path:
    script = folder / "script.sh"
    script.write_text(
        "set -euo pipefail\n# options\nstage=1       # first stage\nskip_eval=false\n"
        "asr_args=\ninference_config=\n# end of options\nnot_an_option=set\n"
        f". {TEMPLATE}/parse_options.sh\n"
        "other_options=()\n"
        f'{parser} "$0" "$@"\n'
        'echo "${stage}|${skip_eval}|${asr_args}|${inference_config}|${not_an_option}'
        '|${other_options[*]}"\n'
    )
    return script


def run_script(script: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", script, *options], capture_output=True, text=True)


@pytest.fixture
def strict(tmp_path):
    return write_parser(tmp_path, "parse_options")


@cases(
    ([], "1|false|||set|"),
    (["--inference_config", "a.yaml"], "1|false||a.yaml|set|"),
    (["--inference-config", "a.yaml"], "1|false||a.yaml|set|"),
    (["--inference_config=a=b.yaml"], "1|false||a=b.yaml|set|"),
    (["--inference-config=a=b.yaml"], "1|false||a=b.yaml|set|"),
    (["--asr_args", "--max_epoch 2", "--stage", ""], "|false|--max_epoch 2||set|"),
    (["--stage", "3", "--stage", "12"], "12|false|||set|"),
)
def test_options_set_their_variables(options, values, strict):
    assert run_script(strict, *options).stdout == f"{values}\n"


@cases(
    (["--skip_eval", "yes"], ["allowed are true and false"]),
    (["--skip_eval", "--stage"], ["allowed are true and false"]),
    (["--stage"], ["a value is missing"]),
    (["12"], ["unexpected '12'"]),
    (["--inference_confg", "x"], ["option --inference_confg", "did you mean: --inference_config"]),
    (["--zzzz", "x"], ["--stage", "--skip_eval", "--asr_args"]),
    (["--not_an_option", "x"], ["--not_an_option"]),
)
def test_unusable_options_end_the_script(options, messages, strict):
    done = run_script(strict, *options)
    assert done.returncode == 2 and all(message in done.stderr for message in messages)
    if options[0] == "--inference_confg":
        assert "--stage" not in done.stderr, "only similar options are named"


def test_help_lists_the_options_with_their_comments(strict):
    done = run_script(strict, "--help")
    assert done.returncode == 0
    assert "--stage=1       # first stage" in done.stdout
    assert "not_an_option" not in done.stdout


def test_unknown_options_are_passed_on_in_order(tmp_path):
    script = write_parser(tmp_path, "parse_known_options")
    done = run_script(script, "--ngpu", "0", "--stage", "2", "--test-sets", "a b")
    assert done.stdout == "2|false|||set|--ngpu 0 --test_sets a b\n"


@cases(
    (["--data_dir", "own/corpus", "--name", "mine"], "mine"),
    (["--data_dir", "own/my corpus"], "my_corpus"),
)
def test_data_of_each_name_has_its_own_folders(options, name, tmp_path):
    link_template(tmp_path, "medusa.sh")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train_base.yaml").write_text(TRAINING)
    record_asr(tmp_path)
    run(tmp_path, "./medusa.sh", *options, "--heads", "", "--stop_stage", "10", status=0)
    (call,) = recorded(tmp_path)
    assert (call["--dumpdir"], call["--expdir"]) == (f"dump/{name}", f"exp/{name}")


@cases(
    ("fsdd", "medusa", "name"),
    ("fsdd", "medusa", "expdir"),
    ("voxpopuli", "whisper", "dumpdir"),
    ("fsdd", "run", "fsdd_dir"),
    ("voxpopuli", "run", "voxpopuli"),
    ("librispeech", "run", "librispeech_pc_dir"),
    ("librispeech", "run_speech_llama", "whisper_model"),
)
def test_white_space_is_refused_where_an_option_is_split(corpus, script, option, tmp_path):
    options = [f"--{option}", "my folder", "--stop_stage", "0"]
    done = run(link_recipe(tmp_path, f"{corpus}/asr1"), f"./{script}.sh", *options, status=2)
    assert f"--{option} 'my folder': white space is not allowed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = link_template(tmp_path_factory.mktemp("recipe"))
    write_set(folder / "own" / "train", 4)
    write_set(folder / "own" / "dev", 2)
    write_set(folder / "own" / "test", 3, broken=1)
    (folder / "conf").mkdir()
    (folder / "conf" / "train.yaml").write_text(TRAINING)
    for beam in (1, 2):
        decoding = f"beam_size: {beam}\nctc_weight: 0.3\nmaxlenratio: -4\n"
        (folder / "conf" / f"beam{beam}.yaml").write_text(decoding)
    return folder


SETS = ["--train_set", "train", "--valid_set", "dev", "--test_sets", "test"]
OPTIONS = ["--data-dir", "own", *SETS, "--ngpu", "0", "--nj", "1", "--inference-nj", "1"]
OPTIONS += ["--token_type", "word", "--asr_config", "conf/train.yaml", "--train_module"]
OPTIONS += ["espnet2.bin.asr_train", "--inference_module", "espnet2.bin.asr_inference"]


def test_all_stages_with_own_data(recipe):
    # The broken test utterance is reported and left out; the exit status is 3.
    done = run(recipe, "./asr.sh", *OPTIONS, "--inference_configs", "conf/beam2.yaml", status=3)
    assert "s-u2" in done.stdout
    assert "asr.sh: not complete: stage 3: 1 utterances" in done.stderr
    shown = [line.split(")", 1)[1] for line in done.stdout.splitlines() if "(asr.sh) Stage" in line]
    assert [text.split()[1] for text in shown] == [f"{n}:" for n in (1, 3, 4, 5, 10, 11, 12, 13)]

    exp_dir = recipe / "exp" / "asr_train_raw_word"
    files = ("config.yaml", "train.log", "run.sh", "valid.acc.ave.pth", "images/training.png")
    assert [name for name in files if not (exp_dir / name).is_file()] == []
    test_dir = exp_dir / "beam2_asr_model_valid.acc.ave" / "test"
    for name in ("text", "token", "token_int", "score"):
        ids = [line.split()[0] for line in (test_dir / name).read_text().splitlines()]
        assert ids == ["s-u0", "s-u1"]
    assert "RTF: " in (test_dir / "logdir" / "calculate_rtf.log").read_text()
    command = (test_dir / "logdir" / "asr_inference.1.log").read_text().splitlines()[0]
    assert "--config conf/beam2.yaml" in command
    assert "--batch_size" not in command, "the decoding configuration has one"
    assert all((test_dir / f"score_{rate}" / "result.txt").is_file() for rate in ("wer", "cer"))
    results = (exp_dir / "RESULTS.md").read_text()
    assert "## exp/asr_train_raw_word\n### WER\n" in results
    assert "|beam2_asr_model_valid.acc.ave/test|2|4|" in results
    assert "1epoch results: [train]" in done.stderr
    shapes = (recipe / "exp" / "asr_stats_raw_word" / "train" / "text_shape.word").read_text()
    assert shapes.splitlines()[0] == "s-u0 2,9"

    # Only the selected stages run again; a lost hypothesis stops scoring and is named.
    (test_dir / "text").write_text("s-u0 one six\n")
    again = [*OPTIONS, "--inference_configs", "conf/beam2.yaml", "--stage", "13"]
    done = run(recipe, "./asr.sh", *again, status=3)
    assert "no hypothesis for 1 utterances: s-u1" in done.stderr
    assert "Stage 12" not in done.stdout
    # The experiment defines its tokens, without an option.
    done = run(
        recipe, "./asr.sh", "--data_dir", "own", "--test_sets", "test", "--skip_train", "true",
        "--asr_exp", "exp/asr_train_raw_word", "--inference_configs", "conf/beam2.yaml",
        "--stage", "13", "--allow_missing", "true",
    )  # fmt: skip
    assert "WER 50.0" in done.stdout, done.stderr


def test_stage_1_names_problems_of_test_sets_and_continues(recipe, tmp_path):
    shutil.copytree(recipe / "own", tmp_path / "own")
    (tmp_path / "own" / "test" / "text").write_text("s-u0 one\ns-u2 two\n")
    options = [*OPTIONS, "--stop_stage", "3", "--data_dir", f"{tmp_path}/own"]
    done = run(recipe, "./asr.sh", *options, "--dumpdir", f"{tmp_path}/dump", status=3)
    assert "s-u1" in done.stdout and "Stage 3 skips these utterances of test\n" in done.stdout
    assert (tmp_path / "dump/raw/test/wav.scp").read_text().split()[0] == "s-u0"


def test_folders_and_files_with_spaces(recipe, tmp_path):
    shutil.copytree(recipe / "own", tmp_path / "my own")
    options = [*OPTIONS, "--data_dir", f"{tmp_path}/my own", "--dumpdir", f"{tmp_path}/my dump"]
    run(recipe, "./asr.sh", *options, "--stop_stage", "5", status=3)
    assert (tmp_path / "my dump" / "token_list" / "word" / "tokens.txt").is_file()
    assert "test: my beam_asr_model" in names(recipe, "--inference_config", "conf/my beam.yaml")


@pytest.mark.parametrize(("longform", "remaining", "status"), [("false", 2, 3), ("true", 4, 0)])
def test_long_audio_is_allowed_only_in_test_sets(recipe, tmp_path, longform, remaining, status):
    for name, count in {"train": 4, "dev": 2, "test": 4}.items():
        write_set(tmp_path / "own" / name, count)  # of 0.5, 0.6, ... s
    limits = ["--max_duration", "0.65", "--max_wav_duration", "0.55", "--on_bad", "skip"]
    options = [*OPTIONS, "--data_dir", f"{tmp_path}/own", "--dumpdir", f"{tmp_path}/dump"]
    options += ["--stage", "3", "--stop_stage", "4", *limits, "--longform", longform]
    run(recipe, "./asr.sh", *options, status=status)
    expected = {"org/train": 2, "train": 1, "org/dev": 2, "dev": 1, "test": remaining}
    counts = {name: len(read_table(tmp_path / "dump/raw" / name / "wav.scp")) for name in expected}
    assert counts == expected


@cases(("1", "text", "train dev"), ("1", "text", "dev"), ("3", "s-u0.wav", "train dev"))
def test_problems_of_all_sets_are_named_before_it_stops(stage, broken, sets, recipe, tmp_path):
    shutil.copytree(recipe / "own", tmp_path / "own")
    for name in sets.split():
        folder = tmp_path / "own" / name
        if broken == "text":
            (folder / "text").write_text("s-u0 one\n")
        else:
            scp = (folder / "wav.scp").read_text().replace(f"{recipe}/own", f"{tmp_path}/own")
            (folder / "wav.scp").write_text(scp)
            (folder / broken).write_bytes(b"no audio")
    options = [*OPTIONS, "--stage", stage, "--stop_stage", stage, "--data_dir", f"{tmp_path}/own"]
    done = run(recipe, "./asr.sh", *options, "--dumpdir", f"{tmp_path}/dump", status=1)
    assert all(f"own/{name}" in done.stdout for name in sets.split())
    assert ("s-u1" if broken == "text" else broken) in done.stdout
    assert f"correct the data of {sets}" in done.stderr


def test_data_dropped_in_stage_1_is_named_and_the_rest_is_processed(tmp_path):
    link_template(tmp_path)
    for name in ("train", "dev", "test"):
        write_set(tmp_path / "data" / name, 2)
    (tmp_path / "data" / "test" / "bad_utterances").write_text("s-u7 wav.scp: is truncated; mend\n")
    write_script(tmp_path / "local" / "data.sh", "#!/bin/sh\n[ $3 = --fast ] && exit $2\n")
    options = ["--train_set", "train", "--valid_set", "dev", "--test_sets", "test lost"]
    options += ["--stop_stage", "3", "--nj", "1", "--local_data_opts"]
    done = run(tmp_path, "./asr.sh", *options, "--status 3 --fast true", status=3)
    assert "1 utterances left out, see data/test/bad_utterances" in done.stdout
    for name in ("org/train", "org/dev", "test"):
        assert (tmp_path / "dump" / "raw" / name / "wav.scp").is_file()
    reasons = [line for line in done.stderr.splitlines() if "not complete" in line]
    assert any("stage 1: data/lost/wav.scp is not there" in line for line in reasons)
    assert any("stage 1: 1 utterances, see data/test/bad_utterances" in line for line in reasons)
    done = run(tmp_path, "./asr.sh", *options, "--status 1 --fast true", status=1)
    assert "Stage 3" not in done.stdout


@cases(
    (["--stage", "twelve"], "a whole number is needed"),
    ([], "--train_set and --valid_set are needed"),
    (["--skip_train", "true"], "--test_sets is needed"),
    ([*SETS, "--feats_type", "fbank"], "allowed: raw"),
    ([*SETS, "--train_nj", "2"], "needs --ngpu 0"),
    ([*SETS, "--feats_normalize", "cmvn"], "allowed are global_mvn"),
    ([*SETS, "--token_type", "whisper_multilingual"], "--token_list FILE"),
    ([*SETS, "--whisper_model", "openai/whisper-tiny"], "only with --token_type whisper_en"),
    ([*SETS, "--audio_format", "mp3"], "allowed are flac.ark"),
    ([*SETS, "--inference_tag", "x", "--inference_configs", "a b"], "names one result"),
    ([*SETS, "--cmd_backend", "nonesuch"], "allowed are local, slurm, sge"),
    ([*SETS, "--dumpdir", "a,b"], "--dumpdir 'a,b': a comma is not allowed"),
    ([*SETS, "--num_nodes", "2"], "--num_nodes 2: only with --cmd_backend slurm"),
)
def test_bad_options_end_with_status_2_before_any_stage(options, message, recipe):
    done = run(recipe, "./asr.sh", *options, status=2)
    assert message in done.stderr and "Stage" not in done.stdout


def test_stage_9_names_the_missing_program(recipe):
    options = [*SETS, "--stage", "9", "--stop_stage", "9", "--use_ngram", "true"]
    if shutil.which("lmplz"):
        pytest.skip("KenLM is installed")
    assert "lmplz" in run(recipe, "./asr.sh", *options, status=2).stderr


def names(folder: Path, *options: str) -> str:
    """Return the titles of stages 10 and 12, which contain the folders' names."""
    shown = []
    for stage in ("10", "12"):
        stages = ["--stage", stage, "--stop_stage", stage]
        # There is no data.
        done = run(folder, "./asr.sh", *SETS, "--dumpdir", "nowhere", *options, *stages, status=1)
        shown += [line for line in done.stdout.splitlines() if "(asr.sh)" in line]
    return "\n".join(shown)


def test_names_follow_espnet(recipe):
    options = ["--asr_config", "conf/train.yaml", "--asr_args", "--max_epoch 2 --optim_conf lr=0.1"]
    options += ["--lang", "en", "--nbpe", "256", "--speed_perturb_factors", "0.9 1.0"]
    options += ["--inference_config", "conf/beam2.yaml", "--inference_args", "--ctc_weight 0.5"]
    shown = names(recipe, *options)
    assert "exp/asr_stats_raw_en_bpe256_sp" in shown
    assert "exp/asr_train_raw_en_bpe256_max_epoch2_optim_conflr0.1_sp" in shown
    assert "beam2_ctc_weight0.5_asr_model_valid.acc.ave" in shown
    # Tags of the user replace them.
    shown = names(recipe, "--asr_tag", "mine", "--inference_tag", "fast", "--expdir", "runs")
    assert "runs/asr_mine" in shown
    assert "Decoding test: fast" in shown


def test_training_does_not_resume_on_another_base(recipe, tmp_path):
    base, exp = tmp_path / "base.pth", tmp_path / "exp"
    options = [*OPTIONS, "--stage", "11", "--stop_stage", "11", "--python", "false"]
    options += ["--asr_exp", exp, "--pretrained_model", f"{base}:encoder:encoder"]

    def train() -> str:  # the training itself fails: `false` does nothing
        return run(recipe, "./asr.sh", *options, status=1).stderr

    assert f"{base}: no such file; train that model first" in train()
    for weights in ("first", "other"):  # without a checkpoint, training starts
        base.write_text(weights)
        assert "training failed with status 1" in train()
    (exp / "checkpoint.pth").touch()
    base.write_text("trained further")
    message = f"{exp}: its training started from other weights than {base}:encoder:encoder now"
    assert message in train()
    assert len(train().splitlines()) == 1
    base.write_text("other")  # the recorded content with another time
    assert "training failed with status 1" in train()
    record = exp / "initial_weights.json"
    (recorded,) = json.loads(record.read_text())
    del recorded["state"]  # as an earlier version wrote it
    record.write_text(json.dumps([recorded | {"bytes": 5, "mtime_ns": 1}]))
    assert "training failed with status 1" in train()


def begin_decoding(folder: Path, *options: str) -> tuple[str, Path]:
    """Run stage 12 with a program that only fails; return its messages and the folder of logs."""
    link_template(folder)
    data = folder / "dump" / "raw" / "test"
    data.mkdir(parents=True)
    (data / "wav.scp").write_text("".join(f"u{number} {number}.wav\n" for number in range(50)))
    command = ["./asr.sh", *SETS, "--stage", "12", "--stop_stage", "12", "--asr_exp", "exp"]
    done = run(folder, *command, *options, "--python", "false", status=1)
    (logs,) = folder.glob("exp/*/test/logdir")
    return done.stderr, logs


@cases(
    ([], min(32, os.cpu_count())), (["--inference_nj", "3"], 3),
    (["--gpu_inference", "true", "--ngpu", "2"], 2),
    (["--gpu_inference", "true", "--ngpu", "0"], 1),
    (["--gpu_inference", "true", "--inference_nj", "5"], 5),
)  # fmt: skip
def test_without_a_cluster_there_is_one_job_per_core_or_gpu(options, jobs, tmp_path):
    _, logs = begin_decoding(tmp_path, *options)
    assert len([*logs.glob("keys.*.scp")]) == jobs


def test_stages_1_and_3_check_labels_of_test_sets_and_keep_silence(recipe, tmp_path):
    for name in ("train", "dev", "test"):
        write_set(tmp_path / "own" / name, 4)
        folder = tmp_path / "own" / name
        for table in ("wav.scp", "text", "utt2spk", "spk2utt"):
            lines = (folder / table).read_text().replace("s-u0 ", "s-u(0) ")
            (folder / table).write_text(lines)
    text = tmp_path / "own" / "test" / "text"
    text.write_text("s-u(0) one\ns-u1\ns-u2 one\t two\ns-u3 six\n")
    options = [*OPTIONS, "--data_dir", f"{tmp_path}/own", "--dumpdir", f"{tmp_path}/dump"]
    done = run(recipe, "./asr.sh", *options, "--stop_stage", "3", status=3)
    # Labels of training sets are not scored.
    assert done.stdout.count("its label in scoring, 's-s-u(0)', has '('") == 2
    expected = {"s-u1": "", "s-u2": "one two", "s-u3": "six"}
    dump = tmp_path / "dump" / "raw"
    assert read_table(dump / "test" / "text", require_value=False) == expected
    assert len(read_table(dump / "org" / "train" / "wav.scp")) == 4
