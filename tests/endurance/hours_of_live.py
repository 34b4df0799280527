"""Transcribe hours of live audio in one process; check memory, open files and progress.

python tests/endurance/hours_of_live.py --model exp/base --data_dir data/test_clean --hours 1 \\
    --table tests/endurance/checks.md

The audio comes in pieces of half a second, as fast as it is decoded. Figures and limits are those
of ``hours_of_audio.py``, measured after each update.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import harness
from hours_of_audio import HOUR_S, RATE_HZ, Meter, Step, add_options, check, recordings

from espnet_medusa import Speech2Text
from espnet_medusa.inference.longform.long_form_options import LongFormOptions

PIECE = RATE_HZ // 2


def decode_live(speech2text: Speech2Text, audio: Path, hours: float) -> Iterator[Step]:
    speech2text.release_weights(LongFormOptions(word_timestamps=True))  # keeps those of word times
    meter, live = Meter(), speech2text.live(language="en")
    for recording in recordings(audio, hours):
        for start in range(0, len(recording.samples), PIECE):
            live.add(recording.samples[start : start + PIECE])
            if (update := live.update()) is not None:
                yield meter.step(update.audio_s / (hours * HOUR_S))


main = harness.make_check(
    "hours of live audio", __file__, __doc__, add_options, partial(check, decode=decode_live)
)


if __name__ == "__main__":
    main()
