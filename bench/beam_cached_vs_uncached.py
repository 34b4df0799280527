"""Stock BatchBeamSearch over cached nodes and over the whole prefix: same n-best, what time?

python bench/beam_cached_vs_uncached.py --exp_dir egs/mini_synth/asr1/exp/asr_base \\
    --wav_scp egs/mini_synth/asr1/dump/raw/test/wav.scp --beam_size 4 --ctc_weight 0.3

Both run in one process, utterance by utterance in turn, on one thread. Paths in wav.scp are read
from the folder of the recipe (the parent of its exp/).
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from espnet_medusa.compat import BatchScorerInterface
from espnet_medusa.kaldi.audio import read_audio
from espnet_medusa.kaldi.table import read_table
from espnet_medusa.speech2text import Speech2Text


class UncachedScorer(BatchScorerInterface):
    """The whole prefix through the teacher-forced forward at every step, as ESPnet's Whisper."""

    def __init__(self, decoder):
        self.decoder = decoder

    def batch_score(self, ys, states, xs):
        lengths = torch.full((len(ys),), xs.size(1))
        logits, _ = self.decoder(xs, lengths, ys, torch.full((len(ys),), ys.size(1)))
        return logits[:, -1].log_softmax(-1), [None] * len(ys)


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exp_dir", type=Path, required=True)
    parser.add_argument("--model", default="valid.acc.ave.pth")
    parser.add_argument("--wav_scp", type=Path, required=True)
    parser.add_argument("--beam_size", type=int, default=4)
    parser.add_argument("--ctc_weight", type=float, default=0.3)
    parser.add_argument("--nbest", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of scores")
    return parser


def main() -> None:
    args = get_parser().parse_args()
    torch.set_num_threads(1)
    entries = read_table(args.wav_scp)
    model = args.exp_dir / args.model
    config = args.exp_dir / "config.yaml"
    recipe = args.exp_dir.resolve().parent.parent
    kind = {"beam_size": args.beam_size, "ctc_weight": args.ctc_weight, "nbest": args.nbest}
    cached, uncached = (
        Speech2Text(asr_train_config=str(config), asr_model_file=str(model), lm_weight=0.0, **kind)
        for _ in range(2)
    )
    scorer = UncachedScorer(uncached.asr_model.decoder)
    uncached.beam_search.scorers["decoder"] = scorer
    uncached.beam_search.full_scorers["decoder"] = scorer
    os.chdir(recipe)
    same, score_gap, ratios = 0, 0.0, []
    for entry in tqdm(entries.values(), unit="utt"):
        speech, _ = read_audio(entry)
        lists, seconds = [], []
        for speech2text in (cached, uncached):
            started = time.perf_counter()
            lists.append([result[3] for result in speech2text(speech)])
            seconds.append(time.perf_counter() - started)
        ours, theirs = ([hyp.yseq.tolist() for hyp in nbest] for nbest in lists)
        same += ours == theirs
        gaps = [abs(float(a.score - b.score)) for a, b in zip(*lists, strict=False)]
        score_gap = max([score_gap, *gaps])
        ratios.append(seconds[1] / seconds[0])
    print(
        f"identical n-best lists: {same}/{len(entries)}, largest score difference {score_gap:.1e}"
    )
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"uncached / cached seconds per utterance: median {quartiles[1]:.2f}, "
        f"quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f}"
    )
    sys.exit(0 if same == len(entries) and score_gap <= args.tolerance else 1)


if __name__ == "__main__":
    main()
