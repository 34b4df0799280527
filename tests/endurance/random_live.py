"""Compare updates of random live streams with decoding the same buffers without drafts.

python tests/endurance/random_live.py --cases 3000 --table tests/endurance/checks.md

A case is an update. Weights, precisions, audio, sizes of pieces, policies, buffers, prompts and
languages are random; the search is greedy, or a beam search. Exit status 1: there is a mismatch.
"""

import random
from collections import Counter
from pathlib import Path

import harness
from harness import DIFFERS, EQUAL
from live_updates import UNGUARDED, repeat_without_drafts, stream
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper

from espnet_medusa.inference.speech2text import Speech2Text

PRECISIONS = ["float32", "int8"]
SEARCHES = [{"search": "greedy"}] * 4 + [{"search": "beam", "beam_size": 3, "patience": 1.0}]
DRAFT = "with a draft"


def outcomes_of(seed: int, folder: Path) -> list[str]:
    rng = random.Random(seed)
    folder.mkdir()
    context = rng.choice([48, 96, 200])
    network = openai_whisper(seed, end=rng.choice([2.0, 3.0, 4.0]), text_context=context)
    weights = save_openai_whisper(network, folder / "whisper.pt")
    precision = rng.choice(PRECISIONS)
    options = {"encoder_precision": precision, "decoder_precision": precision, "language": "en"}
    model = Speech2Text.from_pretrained(str(weights), **options, **rng.choice(SEARCHES))
    live = model.live(
        **UNGUARDED,
        language=rng.choice(["en", "detect"]),
        initial_prompt=rng.choice([None, "a prompt"]),
        condition_on_previous_text=rng.random() < 0.8,
        update_seconds=rng.choice([0.5, 1.0, 2.0]),
        buffer_seconds=rng.choice([3, 6, 15, 25]),
        live_policy=rng.choice(["agreement", "attention"]),
        live_agreement=rng.choice([2, 3]),
        live_margin=rng.choice([0.2, 1.0]),
        live_prompt_tokens=rng.choice([0, 20, 200]),
    )  # fmt: skip
    repeated = repeat_without_drafts(live)
    stream(live, noise_and_silence(rng.uniform(0.2, 30), seed), rng)
    weights.unlink()
    return [
        DIFFERS if drafted.tokens != plain.tokens else DRAFT if row.draft else EQUAL
        for row, (drafted, _), (plain, _) in repeated
    ]


def figures(outcomes: Counter[str], seeds: range) -> str:
    return (
        f"{outcomes.total():,} updates of {len(seeds):,} streams and models, in float32 and int8, "
        f"{outcomes[DRAFT]:,} of them with a draft: {outcomes[DIFFERS]} mismatches"
    )


main = harness.make_random_check(
    "random live updates", __file__, __doc__, 3000, outcomes_of, figures
)


if __name__ == "__main__":
    main()
