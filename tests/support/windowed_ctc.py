"""CTC prefix scores over windows, frame by frame: an oracle for every ESPnet version."""

import numpy as np
import torch

from espnet_medusa.networks import espnet_compat as compat

LOG_ZERO, BLANK, LABELS_AHEAD = -1e10, 0, 5


class WindowedCTC(compat.CTCPrefixScorer):
    """A scorer of ESPnet's search over one utterance; ``margin`` as ``ctc_window_margin``.

    The state of a hypothesis has its forward probabilities (T, 2), its score, and the first and the
    last frame that the beam had reached in the step before.
    """

    def __init__(self, ctc, eos, margin):
        super().__init__(ctc, eos)
        self.margin = margin

    def batch_init_state(self, x):
        self.log_probs = self.ctc.log_softmax(x[None])[0].double().numpy()
        self.spoken = self.log_probs.argmax(axis=1) != BLANK

    def select_state(self, state, i, new_id=None):
        if new_id is None:
            return None if state is None else state[i]
        forward, scores, *reached = state
        return forward[i, :, :, new_id], scores[i, new_id], *reached

    def batch_select_state(self, state, best_ids):
        size = self.log_probs.shape[1]
        return [self.select_state(state, i // size, i % size) for i in best_ids[0].tolist()]

    def batch_score_partial(self, y, ids, states, x):
        labels, last = len(y[0]) - 1, [int(tokens[-1]) for tokens in y]
        if states[0] is None:
            forward = np.full((1, len(self.log_probs), 2), LOG_ZERO)
            forward[0, :, 1] = self.log_probs[:, BLANK].cumsum()
            scores, earliest, latest = np.zeros(1), 0, 1
        else:
            forward, scores = (np.stack([state[part] for state in states]) for part in (0, 1))
            earliest, latest = states[0][2:]
        total = np.logaddexp(forward[..., 0], forward[..., 1])
        reached = total.argmax(axis=1)
        before, earliest = latest, max(earliest, reached.min())
        latest = max(latest, reached.max())
        start, end = min(before, max(earliest - self.margin, labels, 1)), self._end(latest)
        found = [
            self._extend(*parts, labels, start, end)
            for parts in zip(forward, total, last, strict=True)
        ]
        forward, totals = (np.stack(parts) for parts in zip(*found, strict=True))
        if ids is not None:
            chosen = np.zeros(totals.shape, bool)
            np.put_along_axis(chosen, ids.numpy(), True, axis=1)
            totals[~chosen] = LOG_ZERO
        totals[:, self.eos], totals[:, BLANK] = total[:, -1], LOG_ZERO
        return torch.tensor(totals - scores[:, None]), (forward, totals, earliest, latest)

    def _end(self, latest):
        """Go on to ``LABELS_AHEAD`` frames with labels after ``latest``, if the margin has less."""
        frames = len(self.log_probs)
        end, ahead = latest + self.margin + 1, 0
        if end >= frames:
            return frames
        for frame in range(latest + 1, frames):
            ahead += self.spoken[frame]
            if ahead == LABELS_AHEAD:
                return max(end, frame + 1)
        return frames

    def _extend(self, forward, total, last, labels, start, end):
        """Return forward probabilities (T, 2, V) and totals (V,) of one more token."""
        frames, size = self.log_probs.shape
        extended = np.full((frames, 2, size), LOG_ZERO)
        entered = np.full((frames, size), LOG_ZERO)  # paths with the token's first frame here
        if labels == 0:
            extended[0, 0] = entered[start - 1] = self.log_probs[0]
        for frame in range(1, frames):
            blank = self.log_probs[frame, BLANK]
            spoken, silent = extended[frame - 1]
            if frame >= end:
                extended[frame, 1] = np.logaddexp(spoken, silent) + blank
            elif frame >= start:
                paths = np.full(size, total[frame - 1])
                paths[last] = forward[frame - 1, 1]
                entered[frame] = paths + self.log_probs[frame]
                extended[frame, 0] = np.logaddexp(paths, spoken) + self.log_probs[frame]
                extended[frame, 1] = np.logaddexp(spoken, silent) + blank
        return extended, np.logaddexp.reduce(entered, axis=0)
