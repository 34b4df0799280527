"""Made data of a page: decodings with drafts and without, passages, test sets."""

import math
import random
from collections.abc import Iterator

TEXT = """
the committee agreed that every recording should keep its original length because short pauses
carry meaning and listeners notice when somebody removes them afterwards we measured the decoder
on quiet machines and repeated each run three times before writing anything down
"""
WORDS = TEXT.split()
ACCEPTANCE = (0.92, 0.78, 0.6, 0.45)  # of drafts 1, 2, ... tokens ahead
FIGURES = ("average_log_probability", "compression_ratio", "no_speech_probability")


def split_tokens(words: list[str], rng: random.Random) -> list[str]:
    tokens = []
    for word in words:
        cut = rng.randint(3, len(word) - 2) if len(word) > 6 and rng.random() < 0.5 else len(word)
        tokens += [f" {word[:cut]}", word[cut:]] if cut < len(word) else [f" {word}"]
    return tokens


def decode(tokens: list[str], rng: random.Random, drafts: int = 4) -> dict:
    """Return a greedy decoding of these tokens with chains of so many drafts."""
    written, calls, nodes = [], [], 0
    targets = [*tokens, "<end>"]
    while len(written) < len(tokens):
        start = len(written)
        chain = [[nodes - 1, written[-1]["text"] if written else "<|notimestamps|>", 0, None, True]]
        for step in range(1, min(drafts, len(targets) - start) + 1):
            accepted = chain[-1][4] and rng.random() < ACCEPTANCE[step - 1]
            text = targets[start + step - 1] if accepted else f" {rng.choice(WORDS)}"
            score = math.log(rng.uniform(0.5, 0.99) if accepted else rng.uniform(0.1, 0.6))
            chain.append([nodes + step - 1, text, step, round(score, 4), accepted])
        kept = sum(node[4] for node in chain) - 1
        for position, node in enumerate(chain):
            known = position <= kept and start + position < len(targets) and node[1] != "<end>"
            score = round(math.log(rng.uniform(0.55, 0.999)), 4)
            node.append([[targets[start + position], score]] if known else [])
        new = targets[start : start + kept + 1]
        for position, text in enumerate(text for text in new if text != "<end>"):
            by, step = ("draft", position + 1) if position < kept else ("decoder", 0)
            written.append({"text": text, "call": len(calls), "by": by, "step": step})
        nodes += len(chain)
        verification = round(2.0 + 0.12 * len(chain) + rng.uniform(0, 0.3), 3)
        drafting = round(0.35 + rng.uniform(0, 0.1), 3) if drafts else 0.0
        times = {"drafting_ms": drafting, "verification_ms": verification}
        calls.append(times | {"steps": [start, len(written)], "nodes": chain})
    return {"start_ms": 1.2, "tokens": written, "calls": calls}


def attempt(decoded: dict, *figures: float | None, chosen: bool = True) -> dict:
    figures = dict(zip(FIGURES, figures, strict=True))
    return decoded | {"temperature": 0.0, **figures, "chosen": chosen}


def passage(start_s: float, words: list[str], rng: random.Random) -> dict:
    """Return a passage of one attempt, at 2.5 words per second."""
    tokens, spoken = split_tokens(words, rng), []
    for number, word in enumerate(words):
        time_s = round(start_s + 0.4 * number, 2)
        spoken.append({"text": f" {word}", "start_s": time_s, "end_s": round(time_s + 0.35, 2)})
    decoded, log_prob = decode(tokens, rng), round(-rng.uniform(0.1, 0.5), 3)
    ratio, no_speech = round(rng.uniform(1.2, 1.9), 3), round(rng.uniform(0.001, 0.1), 4)
    made = {"start_s": start_s, "end_s": round(start_s + 0.4 * len(words), 2), "words": spoken}
    made |= {"attempts": [attempt(decoded, log_prob, ratio, no_speech)]}
    return made | {"baseline": decode(tokens, rng, drafts=0)}


def utterance(
    rng: random.Random, passages: int = 1, words: int = 24, audio: dict | None = None
) -> dict:
    """Return an utterance's block; every ninth passage of a long recording has a fallback."""
    made = []
    for number in range(passages):
        start_s = made[-1]["end_s"] if made else 0.0
        made.append(passage(start_s, rng.choices(WORDS, k=words), rng))
        if passages > 1 and number % 9 == 2:  # a repetitive first attempt, which was discarded
            repeated = attempt(decode([" and", " then"] * 30, rng), -0.21, 5.13, 0.02, chosen=False)
            [chosen] = made[-1]["attempts"]
            made[-1]["attempts"] = [repeated, chosen | {"temperature": 0.2}]
    return {"audio": audio, "alignment": None, "passages": made}


def peaks(number: int, rng: random.Random) -> list[int]:
    return [int(255 * abs(math.sin(n / 9)) ** 0.7 * rng.uniform(0.3, 1)) for n in range(number)]


def summary(decodings: list[dict], words: int, encoder_ms: float = 60.0) -> dict:
    calls = [call for decoding in decodings for call in decoding["calls"]]
    tokens = sum(len(decoding["tokens"]) for decoding in decodings)
    drafting = sum(call["drafting_ms"] for call in calls)
    verification = sum(call["verification_ms"] for call in calls)
    depth = max(node[2] for call in calls for node in call["nodes"])
    acceptance = []
    for step in range(1, depth + 1):
        kept = [node[4] for call in calls for node in call["nodes"] if node[2] == step]
        acceptance.append(sum(kept) / len(kept))
    total = encoder_ms + drafting + verification + sum(one["start_ms"] for one in decodings)
    return {
        "words": words, "tokens": tokens, "calls": len(calls),
        "tokens_per_call": tokens / len(calls), "acceptance": acceptance, "encoder_ms": encoder_ms,
        "drafting_ms": drafting, "verification_ms": verification, "total_ms": total,
    }  # fmt: skip


def entry(name: str, block: dict) -> dict:
    passages = block["passages"]
    chosen = [next(a for a in one["attempts"] if a["chosen"]) for one in passages]
    text = "".join(token["text"] for one in chosen for token in one["tokens"]).strip()
    given = len(text.split()), 60.0 * len(passages)
    wer = block["alignment"]
    if wer is not None:
        operations = [pair["op"] for pair in wer]
        errors, words = (sum(op != other for op in operations) for other in "=I")
        wer = {"errors": errors, "words": words}
    row = {"id": name, "seconds": passages[-1]["end_s"], "text": text, "error": None}
    row["summary"] = summary([a for one in passages for a in one["attempts"]], *given)
    return row | {"baseline": summary([one["baseline"] for one in passages], *given), "wer": wer}


def align(text: str, rng: random.Random, rate: float = 0.08) -> list[dict]:
    pairs = []
    for word in text.split():
        op = rng.choice("SDI") if rng.random() < rate else "="
        reference = {"S": rng.choice(WORDS), "I": ""}.get(op, word)
        pairs.append({"op": op, "reference": reference, "hypothesis": "" if op == "D" else word})
    return pairs


def overview(title: str, entries: list[dict], **changed) -> dict:
    whole = {"version": 1, "title": title, "drafter": "heads", "search": "greedy"}
    return whole | {"utterances": entries} | changed


def one_recording(passages: int = 1, words: int = 24, audio: str | None = None):
    rng = random.Random(0)
    shown = audio and {"src": audio, "peaks": peaks(900 + 10 * passages, rng)}
    block = utterance(rng, passages, words, shown)
    block["alignment"] = align(entry("talk1", block)["text"], rng)
    thresholds = {"compression_ratio": 2.4, "average_log_probability": -1.0}
    return overview("talk1.wav", [entry("talk1", block)], thresholds=thresholds), [block]


def corpus(size: int) -> tuple[dict, Iterator[dict]]:
    """Return overview and blocks of a test set, whose utterances are repeated after 50."""
    rng, blocks = random.Random(0), []
    for _ in range(min(size, 50)):
        block = utterance(rng, words=rng.randint(4, 30))
        block["alignment"] = align(entry("", block)["text"], rng)
        blocks.append(block)
    made = [entry("", block) for block in blocks]
    ids = [f"{1000 + n // 60}-{120000 + n // 20}-{n % 20:04d}" for n in range(size)]
    entries = [made[n % len(made)] | {"id": name} for n, name in enumerate(ids)]
    if size > 7:
        lost = {"error": "the file has no audio", "summary": None, "baseline": None, "wer": None}
        entries[7] = entries[7] | lost | {"text": ""}
    return overview("test-clean", entries), (blocks[n % len(blocks)] for n in range(size))


def beam_recording() -> tuple[dict, list[dict]]:
    """Return overview and blocks of a beam search of two hypotheses, with a tree of drafts."""
    first = [
        [-1, "<|en|>", 0, None, True, [[" we", -0.4], [" the", -1.3], [" so", -2.2]]],
        [0, " we", 1, -0.3, True, [[" agreed", -0.9], [" keep", -1.7]]],
        [0, " the", 1, -1.6, True, [[" committee", -1.5]]],
        [1, " keep", 2, -0.8, False, []],
        [1, " agreed", 2, -1.1, True, [["<end>", -1.0], [" that", -2.4]]],
    ]
    second = [[4, "<end>", 1, -0.2, True, []], [4, " that", 1, -2.0, False, []]]
    times = {"drafting_ms": 0.8, "verification_ms": 4.2}
    tokens = [
        {"text": "<|0.00|>", "call": None, "by": "unverified", "step": 0, "special": True},
        {"text": " we", "call": 0, "by": "draft", "step": 1},
        {"text": " agreed", "call": 0, "by": "draft", "step": 2},
    ]
    calls = [times | {"steps": [0, 2], "nodes": first}, times | {"steps": [2, 2], "nodes": second}]
    decoded = attempt({"start_ms": 1.0, "tokens": tokens, "calls": calls}, None, None, None)
    one = {"start_s": 0.0, "end_s": 1.5, "words": [], "attempts": [decoded], "baseline": None}
    block = {"audio": None, "alignment": None, "passages": [one]}
    listed = entry("beam", block | {"passages": [one | {"baseline": decoded}]}) | {"baseline": None}
    return overview("beam", [listed], search="beam"), [block]
