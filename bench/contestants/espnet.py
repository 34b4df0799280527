"""ESPnet's ``BatchBeamSearch`` over a decoder without cache, as in ESPnet's own Whisper decoder."""

from collections.abc import Sequence

import torch

from contestants.base import Memories, MemoryDecoder, Result, until_end
from contestants.ours import load_decoder, max_length_ratio
from contestants.ways import BEAM_SIZES, Way
from espnet_medusa.networks.espnet_compat import BatchBeamSearch, BatchScorerInterface
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder


class UncachedScorer(BatchScorerInterface):
    """Evaluates whole prefixes with the teacher-forced decoder at each step."""

    def __init__(self, decoder: WhisperMedusaDecoder):
        self.decoder = decoder

    def batch_score(self, ys, states, xs):
        lengths = torch.full((len(ys),), xs.size(1))
        logits, _ = self.decoder(xs, lengths, ys, torch.full((len(ys),), ys.size(1)))
        return logits[:, -1].log_softmax(-1), [None] * len(ys)


class ESPnetUncached(MemoryDecoder):
    """Beam search, with beam 1 for greedy; one input at a time."""

    def load(self) -> None:
        decoder = load_decoder(self.subject, with_heads=False)
        scorers, weights = {"decoder": UncachedScorer(decoder)}, {"decoder": 1.0}
        sizes = self.subject.sizes.vocab_size, self.subject.eos, self.subject.eos
        self.searches = {
            name: BatchBeamSearch(scorers, weights, size, *sizes, pre_beam_score_key="full").eval()
            for name, size in BEAM_SIZES.items()
        }

    @torch.no_grad()
    def decode(self, way: Way, names: Sequence[str], encoder_outs: Memories) -> list[Result]:
        (encoder_out,) = encoder_outs
        search, encoder_out = self.searches[way.search], torch.from_numpy(encoder_out)
        try:
            nbest = search(x=encoder_out, maxlenratio=max_length_ratio(self.subject))
        except RuntimeError:
            # ESPnet decodes up to as many tokens as frames; the decoder has fewer positions.
            nbest = search(x=encoder_out, maxlenratio=-float(self.subject.max_tokens))
        return [Result(tokens=until_end(nbest[0].yseq.tolist()[1:], self.subject.eos))]
