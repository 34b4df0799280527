"""Measure drafts of a known text: decoder calls and seconds, against heads and without drafts.

    python bench/text_drafts.py --whisper openai/whisper-base --other openai/whisper-tiny.en \
        --speech 'test-clean/**/*.flac' --count 60

Each utterance is decoded with each drafter in turns. The text is the model's own (a second
decoding) or that of --other. Times are processor seconds of the search, without the encoder: the
least of --repeats.
"""

import argparse
import glob
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from espnet_medusa import Speech2Text
from espnet_medusa.data.audio.reader import read_audio, resample
from espnet_medusa.data.audio.source import open_file

INT8 = {"encoder_precision": "int8", "decoder_precision": "int8"}
BASELINE, HEADS = "baseline", "heads"
OWN, OTHER = "own text", "other text"


def read(path: str, rate_hz: int) -> np.ndarray:
    samples, given_hz = read_audio(open_file(path))
    return resample(samples, given_hz, rate_hz)


def open_searches(whisper: str, beam_size: int) -> dict[str, Speech2Text]:
    """Open the model once per drafter."""
    search = {"search": "greedy", "beam_size": 1}
    if beam_size > 1:
        search = {"beam_size": beam_size, "patience": 1.0, "draft_width": None}
    options = INT8 | search | {"nbest": 1}
    drafters = {
        BASELINE: {"draft_depth": 0},
        HEADS: {"lookahead": "fixed"},
        "text": {"drafter": "text"},
    }
    return {
        name: Speech2Text.from_pretrained(whisper, **options, **drafter)
        for name, drafter in drafters.items()
    }


def measure(
    models: Mapping[str, Speech2Text], speech: np.ndarray, texts: Mapping[str, str], repeats: int
) -> dict[str, tuple[int, int, float, list[int]]]:
    """Return calls, tokens, seconds and token ids by drafter."""
    ways = {BASELINE: (BASELINE, None), HEADS: (HEADS, None)}
    for name, text in texts.items():
        ways |= {f"text: {name}": ("text", text), f"text+heads: {name}": (HEADS, text)}
    found: dict[str, tuple[int, int, float, list[int]]] = {}
    for _ in range(repeats):
        for way, (name, text) in ways.items():
            model = models[name].model
            audio = model.batch([speech])
            encoder_out, frames = model.encode(audio)
            prompts = model.make_prompts(encoder_out, frames, ["en"])
            drafts = model.encode_draft_texts([text])
            inputs = prompts, model.limits, None
            started = time.process_time()
            [state] = model.search(encoder_out, frames, *inputs, draft_texts=drafts)
            seconds = time.process_time() - started
            counts, tokens = state.statistics, state.n_best[0].tokens
            least = min(seconds, found[way][2]) if way in found else seconds
            found[way] = counts.decoder_calls, len(tokens), least, tokens
    return found


def report(rows: Sequence[Mapping[str, tuple[int, int, float, list[int]]]]) -> str:
    """Return a table in Markdown with means over utterances."""
    names = "drafter", "calls per utterance", "tokens per call", "decoder ms (mean)"
    names = *names, "speedup over heads", "same text"
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    heads = sum(row[HEADS][2] for row in rows)
    for way in rows[0]:
        calls, tokens, seconds = (sum(row[way][part] for row in rows) for part in range(3))
        same = sum(row[way][3] == row[BASELINE][3] for row in rows)
        means = f"{calls / len(rows):.2f} | {tokens / calls:.2f} | {1000 * seconds / len(rows):.1f}"
        lines.append(f"| {way} | {means} | {heads / seconds:.2f} | {same}/{len(rows)} |")
    return "\n".join(lines)


def main(cmd: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whisper", required=True, help="model that decodes")
    parser.add_argument("--other", required=True, help="model whose text drafts")
    parser.add_argument("--speech", required=True, help="pattern of audio files")
    parser.add_argument("--count", type=int, default=60, help="number of files, evenly chosen")
    parser.add_argument("--beam_size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(cmd)
    torch.set_num_threads(1)
    paths = sorted(glob.glob(args.speech, recursive=True))
    paths = paths[:: max(len(paths) // args.count, 1)][: args.count]
    models = open_searches(args.whisper, args.beam_size)
    other = Speech2Text.from_pretrained(args.other, search="greedy", beam_size=1, **INT8)
    rows = []
    for path in paths:
        speech = read(path, other.sample_rate_hz)[: int(other.window_s * other.sample_rate_hz)]
        texts = {OWN: models[BASELINE](speech)[0][0], OTHER: other(speech)[0][0]}
        rows.append(measure(models, speech, texts, args.repeats))
    search = "greedy" if args.beam_size == 1 else f"beam {args.beam_size}"
    command = f"python bench/text_drafts.py {' '.join(sys.argv[1:])}"
    print(f"## {search}, int8\n\n```\n{command}\n```\n\n{report(rows)}")


if __name__ == "__main__":
    main()
