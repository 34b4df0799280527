"""ESPnet's ``BatchBeamSearch`` over a decoder without cache, which is how its own Whisper runs."""

from collections.abc import Sequence

import numpy as np
import torch
from beam_loop import UncachedScorer

from espnet_medusa.upstream.compat import BatchBeamSearch
from peers.contestant import Contestant, Decoded, Setup
from peers.memories import until_end
from peers.ours import load_decoder, max_length_ratio
from peers.subject import Subject
from peers.way import BEAM_SIZES, Way


class ESPnetUncached(Contestant):
    """Beam search, of beam 1 for greedy; one input at a time, as ESPnet 202511."""

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        decoder = load_decoder(subject, with_heads=False)
        sizes = subject.sizes.vocab_size, subject.eos, subject.eos
        self.searches = {
            name: BatchBeamSearch(
                {"decoder": UncachedScorer(decoder)},
                {"decoder": 1.0},
                beam_size,
                *sizes,
                pre_beam_score_key="full",
            ).eval()
            for name, beam_size in BEAM_SIZES.items()
        }

    @torch.no_grad()
    def decode(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        (memory,) = memories
        search, memory = self.searches[way.search], torch.from_numpy(memory)
        try:
            found = search(x=memory, maxlenratio=max_length_ratio(self.subject))
        except RuntimeError:
            # ESPnet goes on for as many tokens as there are frames; the decoder has no position.
            found = search(x=memory, maxlenratio=-float(self.subject.max_tokens))
        return Decoded([until_end(found[0].yseq.tolist()[1:], self.subject.eos)])


build = ESPnetUncached
