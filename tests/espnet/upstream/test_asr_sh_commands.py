"""Commands of ESPnet's asr.sh, stages 5 and 10 to 13, with `--python espnet-medusa-python`."""

import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import asr_sh_commands as asr_sh
import pytest
import torch
import warm_python
import yaml
from asr_sh_commands import Command
from job_log import espnet_seconds
from recipes import SHORT_TRAINING, write_script, write_set
from tiny_whisper import save_tiny_whisper, save_whisper_of_bytes

from espnet_medusa.bin import report
from espnet_medusa.data.files.yaml_text import load_yaml
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.networks.whisper.text import TextOptions, find_text
from espnet_medusa.recipes.scoring.box_table import parse_sum

PYTHON = "python3 -m espnet_medusa.bin.python"
FROM_SCRATCH = """
encoder: hf_whisper
encoder_conf: {output_size: 16, attention_heads: 2, linear_units: 16, num_blocks: 1,
    max_source_positions: 100}
decoder: whisper_medusa
decoder_conf: {attention_heads: 2, linear_units: 16, num_blocks: 1, max_target_positions: 40,
    heads: linear, heads_conf: {num_heads: 2}}
model: medusa
"""
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "recipe.md").read_text("utf-8")
CONFIG = re.search("^```yaml\n(encoder: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
WHISPER = CONFIG.replace("openai/whisper-base", "whisper")
# Kaldi's run.pl with the arguments of launch: options with values, a log, a command.
RUN_PL = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
log=$1; shift; "$@" > "$log" 2>&1
"""
# Letters of the six words, blank, unknown, space and end; all of Whisper's; bytes and 11 symbols.
NUM_TOKENS = {"char": 17, "whisper_multilingual": 51865, "hugging_face": 267}
LENGTHS = "ctc_weight: 0.0\nmaxlenratio: -12\nminlenratio: -4\n"


@dataclass
class Recipe:
    folder: Path
    places: Mapping[str, str]

    def path(self, name: str) -> Path:
        """A path with names of ``places`` in braces."""
        return self.folder / name.format_map(self.places)

    def run(self, command: Command, job: int = 1, python: str = PYTHON, extra: str = "") -> str:
        """Run a command as asr.sh and run.pl do, and return its stdout."""
        self.places = {**self.places, "job": str(job)}
        line = command.words.format_map(self.places)
        words = shlex.split(f"{python} {line} {extra}" if line.startswith("-m") else line)
        given = self.path(command.stdin).read_text() if command.stdin else None
        done = subprocess.run(
            words, cwd=self.folder, env=warm_python.environment(), input=given, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if command.log else subprocess.PIPE,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        for target in (command.stdout, command.log):
            if target:
                self.path(target).parent.mkdir(parents=True, exist_ok=True)
                self.path(target).write_text(done.stdout)
        return done.stdout


def make_recipe(folder: Path, token_type: str) -> Recipe:
    for name, count in (("train", 4), ("dev", 2), ("test", 4)):
        write_set(folder / "dump" / "raw" / name, count)
    shutil.copyfile(folder / "dump/raw/train/text", folder / "dump/raw/lm_train.txt")
    (folder / "conf").mkdir()
    config = load_yaml(FROM_SCRATCH if token_type == "char" else WHISPER)
    if token_type == "hugging_face":
        config["preprocessor"] = "whisper"
    config |= load_yaml(SHORT_TRAINING)
    (folder / "conf" / "train.yaml").write_text(yaml.safe_dump(config))
    (folder / "conf" / "decode.yaml").write_text(f"search: greedy\nbatch_size: 4\n{LENGTHS}")
    (folder / "conf" / "beam.yaml").write_text(f"beam_size: 2\n{LENGTHS}")
    if token_type == "whisper_multilingual":
        save_tiny_whisper(folder / "whisper")
    elif token_type == "hugging_face":
        save_whisper_of_bytes(folder / "whisper")
        find_text(NUM_TOKENS[token_type], folder / "whisper", TextOptions(), {}).save(
            folder / "tokenizer"
        )
    write_script(folder / "run.pl", RUN_PL)
    bpemodel = {"char": "none", "hugging_face": "tokenizer"}.get(token_type, token_type)
    places = asr_sh.DATA | {
        "token_type": token_type, "bpemodel": bpemodel, "lang": "en", "python": PYTHON,
        "token_list": f"data/en_token_list/{token_type}/tokens.txt",
        "run_pl": f"{folder}/run.pl", "sclite": "python3 -m espnet_medusa.bin.sclite",
    }  # fmt: skip
    return Recipe(folder, places)


def split_keys(recipe: Recipe, name: str, target: str) -> None:
    lines = recipe.path(f"{{{name}}}/wav.scp").read_text().splitlines(keepends=True)
    half = len(lines) // 2
    for job, part in (("1", lines[:half]), ("2", lines[half:])):
        path = recipe.path(target.replace("JOB", job))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(part))


def train(recipe: Recipe) -> None:
    split_keys(recipe, "train", "{stats}/logdir/train.JOB.scp")
    split_keys(recipe, "dev", "{stats}/logdir/valid.JOB.scp")
    for job in (1, 2):
        recipe.run(asr_sh.STATISTICS, job)
    recipe.run(asr_sh.AGGREGATION)
    tokens = len(recipe.path("{token_list}").read_text().splitlines())
    for name in ("train", "valid"):  # as its awk: append the number of tokens to each length
        shapes = recipe.path(f"{{stats}}/{name}/text_shape")
        lines = [f"{line},{tokens}\n" for line in shapes.read_text().splitlines()]
        shapes.with_name(f"text_shape.{recipe.places['token_type']}").write_text("".join(lines))
    recipe.path("{exp}").mkdir()
    recipe.run(asr_sh.LAUNCH)


def decode(recipe: Recipe, tag: str = "decode", python: str = PYTHON, extra: str = "") -> str:
    """Stage 12: two jobs, their texts joined and sorted."""
    recipe.places = {**recipe.places, "decoded": f"{asr_sh.DATA['exp']}/{tag}/test"}
    split_keys(recipe, "test", "{decoded}/logdir/keys.JOB.scp")
    for job in (1, 2):
        recipe.run(asr_sh.INFERENCE, job, python, extra)
    texts = recipe.path("{decoded}/logdir").glob("output.*/1best_recog/text")
    lines = sorted(line for path in texts for line in path.read_text().splitlines())
    text = "".join(f"{line}\n" for line in lines)
    recipe.path("{decoded}/text").write_text(text)
    return text


def score(recipe: Recipe) -> None:
    """Stage 13: one error rate; tokens and ids are pasted as in asr.sh."""
    ids = recipe.path("{test}/utt2spk").read_text().splitlines()
    for command in (asr_sh.REFERENCES, asr_sh.HYPOTHESES):
        lines = recipe.run(command).splitlines()
        assert len(lines) == len(ids)
        rows = zip(lines, map(str.split, ids), strict=True)
        pasted = [f"{line}\t({speaker}-{key})\n" for line, (key, speaker) in rows]
        recipe.path(command.stdout).with_suffix(".trn").write_text("".join(pasted))
    recipe.run(asr_sh.SCLITE)


LISTS = {
    "char": asr_sh.CHARACTERS,
    "whisper_multilingual": asr_sh.WHISPERS,
    "hugging_face": asr_sh.HUGGING_FACES,
}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """Recipes by token type after stage 11, without the folders of their Whisper models."""

    @functools.cache
    def trained(token_type: str) -> Recipe:
        recipe = make_recipe(tmp_path_factory.mktemp(token_type), token_type)
        recipe.run(LISTS[token_type])
        train(recipe)
        shutil.rmtree(recipe.folder / "whisper", ignore_errors=True)
        return recipe

    return trained


@pytest.mark.parametrize("token_type", LISTS)
def test_training_accepts_asr_sh_options_and_needs_no_other_model(recipes, token_type):
    trained = recipes(token_type)
    config = load_yaml(trained.path("{exp}/config.yaml").read_text())
    assert len(config["token_list"]) == NUM_TOKENS[token_type]
    assert [config[name] for name in ("input_size", "frontend", "normalize")] == [1, None, None]
    assert "whisper_model" not in trained.path("{exp}/config.yaml").read_text()
    log = trained.path("{exp}/train.log").read_text()
    assert log.count("hf_whisper takes the waveform; ignored: frontend: default, normalize:") == 1
    weights = torch.load(trained.path("{exp}/valid.acc.ave.pth"), weights_only=True)
    assert not [name for name in weights if name.startswith("ctc.")]


@pytest.mark.parametrize("token_type", LISTS)
def test_decoding_is_redirected_and_espnet_reads_its_log(recipes, token_type):
    trained = recipes(token_type)
    with_heads = decode(trained)
    keys = [line.split()[0] for line in trained.path("{test}/wav.scp").read_text().splitlines()]
    assert [line.split()[0] for line in with_heads.splitlines()] == keys
    for job in (1, 2):
        log = trained.path(f"{{decoded}}/logdir/asr_inference.{job}.log")
        utterances, samples, seconds = espnet_seconds(log)
        assert (utterances, samples > 0, seconds > 0) == (2, True, True)
        assert "decoding: " not in log.read_text(), "no progress lines within a minute"
        assert "batch_size: 1 in the command line replaces 4 in conf/decode.yaml" in log.read_text()
    statistics = trained.path("{decoded}/logdir/output.1/statistics.json")
    assert all(sum(row.drafted) > 0 for row in read_statistics(statistics).values())
    score(trained)
    report = parse_sum(trained.path("{decoded}/score_wer/result.txt"))
    assert (report.sentences, report.words) == ("4", "8")
    if token_type == "char":
        assert decode(trained, "no_drafts", extra="--draft_depth 0") == with_heads


def test_espnets_own_search_on_request(recipes):
    trained = recipes("char")
    options = "--config conf/beam.yaml"  # the last one counts
    ours = decode(trained, "beam", extra=options)
    assert len([*trained.path("{decoded}/logdir").glob("output.*/statistics.json")]) == 2
    theirs = decode(trained, "espnet", f"{PYTHON} --no-redirect", options)
    assert not [*trained.path("{decoded}/logdir").glob("output.*/statistics.json")]
    assert ours == theirs


def test_options_on_the_page_exist():
    commands = []
    for block in re.findall("^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        commands += block.replace("\\\n", " ").splitlines()
    for name, *words in map(shlex.split, commands):
        if name == "./run.sh":
            assert {word[2:] for word in words[::2]} <= asr_sh.OPTIONS, words
            assert words[words.index("--python") + 1] == "espnet-medusa-python"
        elif name == "espnet-medusa-report":
            assert report.get_parser().parse_args(words).baseline is not None
    names = [name for name, *_ in map(str.split, commands)]
    assert names.count("./run.sh") == 3 and names.count("espnet-medusa-report") == 1
    # tools/check_upstream.sh makes the same link.
    checked = (Path(__file__).resolve().parents[3] / "tools/check_upstream.sh").read_text()
    link = 'ln -s "$(command -v espnet-medusa-sclite)"'
    assert link in checked and any(command.startswith(link) for command in commands)
