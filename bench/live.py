"""Measure live transcription on joined speech: calls, processor time, delays and word errors.

    python bench/live.py --whisper openai/whisper-base --trans 'test-clean/*/*/*.trans.txt' \
        --chapters 1 --minutes 4

A chapter is streamed in pieces, as fast as possible. A word's delay is the audio time between its
end and its confirmation, without computation. The WER of a file is that of ``transcribe``.
"""

import argparse
import glob
import time
from pathlib import Path

import jiwer
import numpy as np
import torch
from espnet2.text.cleaner import TextCleaner

from espnet_medusa import Speech2Text
from espnet_medusa.data.audio.reader import read_audio, resample
from espnet_medusa.data.audio.source import open_file

PIECE_S = 0.1


def read_chapter(trans: Path, rate_hz: int, most_s: float) -> tuple[np.ndarray, str]:
    """Join the utterances of a chapter of LibriSpeech; return samples and reference."""
    parts, texts = [], []
    for line in trans.read_text().splitlines():
        name, text = line.split(maxsplit=1)
        samples, given_hz = read_audio(open_file(str(trans.with_name(f"{name}.flac"))))
        parts.append(resample(samples, given_hz, rate_hz).astype(np.float32))
        texts.append(text)
        if sum(map(len, parts)) > most_s * rate_hz:
            break
    return np.concatenate(parts), " ".join(texts)


def stream(model: Speech2Text, samples: np.ndarray, **options) -> dict:
    """Transcribe a stream; return text, delays in s and costs."""
    live, updates, confirmed = model.live(**options), [], []
    piece, started = round(PIECE_S * model.sample_rate_hz), time.process_time()
    for first in range(0, len(samples), piece):
        live.add(samples[first : first + piece])
        if (update := live.update()) is not None:
            updates.append(update)
    updates.append(live.finish())
    seconds = time.process_time() - started
    for update in updates:
        confirmed += [(word, update.audio_s) for word in update.confirmed]
    timed = [segment for update in updates for segment in update.segments]
    text = "".join(word.text for word, _ in confirmed)
    assert text == "".join(segment.text for segment in timed)
    assert np.array_equal(samples[:0], live.audio.samples)
    # Words of segments have final times; a mark is a part of its word there.
    ends = [word.end_s for segment in timed for word in segment.words]
    seen = [audio_s for word, audio_s in confirmed if any(map(str.isalnum, word.text))]
    delays = np.subtract(seen, ends) if len(seen) == len(ends) else np.array([np.nan])
    return {
        "text": text,
        "delays": delays,
        "updates": sum(update.statistics.decoder_calls > 0 for update in updates),
        "calls": live.statistics.decoder_calls,
        "tokens": live.statistics.tokens,
        "nodes": live.statistics.nodes,
        "seconds": seconds,
        "decoder_s": live.statistics.decoder_seconds,
    }


def main(cmd: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whisper", required=True)
    parser.add_argument("--trans", required=True, help="pattern of LibriSpeech's .trans.txt files")
    parser.add_argument("--chapters", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=4.0, help="of each chapter")
    parser.add_argument("--set", nargs="*", default=[""], help="option=value,... per row")
    parser.add_argument("--drafts", default="text", help="text, or also none")
    parser.add_argument("--no_file", action="store_true")
    args = parser.parse_args(cmd)
    torch.set_num_threads(1)
    options = {"search": "greedy", "beam_size": 1, "language": "en"}
    options |= {"encoder_precision": "int8", "decoder_precision": "int8"}
    models = {"text+heads": Speech2Text.from_pretrained(args.whisper, **options)}
    if "none" in args.drafts:
        models["none"] = Speech2Text.from_pretrained(args.whisper, draft_depth=0, **options)
    clean, model = TextCleaner("whisper_en"), models["text+heads"]
    paths = sorted(glob.glob(args.trans, recursive=True))[args.skip :][: args.chapters]
    chapters = [read_chapter(Path(p), model.sample_rate_hz, 60 * args.minutes) for p in paths]
    audio_s = sum(len(samples) for samples, _ in chapters) / model.sample_rate_hz
    references = [clean(text) for _, text in chapters]

    def wer(texts: list[str]) -> float:
        return 100 * jiwer.wer(references, [clean(text) for text in texts])

    print(f"{len(chapters)} chapters, {audio_s:.0f} s of audio")
    if not args.no_file:
        for trial in ({}, {"without_timestamps": True}):
            how = {"fallback_on": "repetition", "skip_silence": True, **trial}
            started = time.process_time()
            texts = ["".join(s.text for s in model.transcribe(x, **how)) for x, _ in chapters]
            seconds = time.process_time() - started
            print(f"file {trial}: WER {wer(texts):.2f}, {seconds / audio_s:.3f} processor s per s")
    for words in args.set:
        pairs = dict(one.split("=") for one in words.split(",") if one)
        given = {k: v if k == "live_policy" else eval(v) for k, v in pairs.items()}
        for name, one in models.items():
            rows = [stream(one, samples, **given) for samples, _ in chapters]
            total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "delays"
                     and key != "text"}  # fmt: skip
            delays = np.concatenate([row["delays"] for row in rows])
            middle, late = np.nanpercentile(delays, [50, 95])
            per_update = {k: total[k] / total["updates"] for k in ("calls", "tokens", "nodes")}
            print(
                f"{words or 'defaults'}, drafts {name}: WER {wer([r['text'] for r in rows]):.2f}, "
                f"delay median {middle:.2f}, mean {np.nanmean(delays):.2f}, p95 {late:.2f} s "
                f"({len(delays)} words); per update: {per_update['calls']:.2f} calls, "
                f"{per_update['tokens']:.1f} tokens, {per_update['nodes']:.0f} nodes; "
                f"{total['seconds'] / audio_s:.3f} processor s per s, "
                f"decoder {total['decoder_s'] / audio_s:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
