"""Amplify quiet parts of a recording, for detectors that were trained on a normal level."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

BLOCK, FRAME = 16384, 512  # samples: about a second at 16 kHz, and 32 ms
# The level of a block is that of its 4th loudest frame: a word is longer, a click is shorter.
LOUD_FRAMES = 4
NEAR = 5  # blocks: the loudest one within this distance sets the gain
LEVEL_DB = -35.0  # of full scale; louder parts are unchanged
NEAR_FRAMES = NEAR * BLOCK // FRAME
MAX_GAIN_DB = 60.0  # speech in 16 bit then reaches the level; digital silence stays silent


def raise_quiet_parts(samples: np.ndarray) -> np.ndarray:
    """Return (samples,) at 16 kHz, float32; its quiet parts have the level ``LEVEL_DB``."""
    if not len(samples):
        return samples
    frames = np.pad(samples, (0, -len(samples) % BLOCK)).reshape(-1, BLOCK // FRAME, FRAME)
    power = np.einsum("bfs,bfs->bf", frames, frames) / FRAME
    loud = np.sort(power, axis=1)[:, -LOUD_FRAMES]
    near = sliding_window_view(np.pad(loud, NEAR), 2 * NEAR + 1).max(axis=1)
    gains_db = np.clip(LEVEL_DB - 10 * np.log10(near + 1e-12), 0.0, MAX_GAIN_DB)
    if not gains_db.any():
        return samples
    centers = BLOCK * (np.arange(len(gains_db)) + 0.5)
    gains = np.interp(FRAME * np.arange(frames[..., 0].size), centers, gains_db)
    scaled = frames * (10 ** (gains / 20)).astype(np.float32).reshape(*frames.shape[:2], 1)
    return scaled.reshape(-1)[: len(samples)]


def gain_of(powers: np.ndarray) -> np.ndarray:
    """Return gains (N,) that raise the level of frames with powers (N, frames) to ``LEVEL_DB``."""
    loud = np.sort(powers, axis=1)[:, -LOUD_FRAMES]
    return 10 ** (np.clip(LEVEL_DB - 10 * np.log10(loud + 1e-12), 0.0, MAX_GAIN_DB) / 20)
