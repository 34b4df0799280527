"""LibriSpeech-PC: the transcripts with punctuation and case as the books have them.

One JSON line an utterance; of `text` and `text_raw`, `text` is the one made for recognition. It
has about 91% of the corpus: utterances that could not be found in the books are left out.
"""

import json
from pathlib import Path

from espnet_medusa.kaldi.table import DataProblem


def read_manifest(path: Path) -> tuple[dict[str, str], list[DataProblem]]:
    """Read a manifest.

    Args:
        path: Such as `dev-clean.json`; `audio_filepath` is
            `<subset>/<reader>/<chapter>/<id>.flac`.

    Returns:
        Utterance id to restored transcript, and a problem for each line that cannot be used.
    """
    texts: dict[str, str] = {}
    problems = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            key, text = Path(entry["audio_filepath"]).stem, " ".join(entry["text"].split())
        except (ValueError, KeyError, TypeError, AttributeError):
            message = "is no JSON object with audio_filepath and text"
        else:
            message = f"names {key} again" if key in texts else ""
            if not text:
                message = f"has no text for {key}"
        if message:
            remedy = "unpack the manifests again"
            problems.append(DataProblem(str(path), f"line {number}", message, remedy))
        else:
            texts[key] = text
    return texts, problems
