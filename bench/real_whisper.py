"""A real Whisper on real speech, a subject of ``compare.py``: samples to text.

Every transcriber has its own features, its own encoder and a process of its own for each type of
weights; utterance after utterance, all ways in turns. The weights are those of one experiment.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inputs import Utterance
from peers.client import Client, ContestantFailed
from peers.contestant import Setup
from peers.make_whisper_subject import make_whisper_subject
from peers.transcriber import OURS, TRANSCRIBERS, Transcribed
from peers.way import Way
from peers.whisper_subject import WhisperSubject
from real_whisper_report import make_report, write_report
from tqdm import tqdm

from espnet_medusa.errors import InputError


@dataclass(frozen=True)
class Asked:
    """What shall be compared.

    Attributes:
        transcribers: Names in ``TRANSCRIBERS``.
        weights: Types; None: each transcriber's.
        searches: ``way.GREEDY``, ``way.BEAM5``.
        drafters: For ours, of those that there are.
    """

    transcribers: Sequence[str]
    weights: Sequence[str] | None
    searches: Sequence[str]
    drafters: Sequence[str]


@dataclass
class Transcriptions:
    """What everybody wrote.

    Attributes:
        found: By way and utterance.
        left_out: Why somebody is not there.
    """

    found: dict[Way, dict[str, Transcribed]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def compare_real_whisper(
    folder: Path,
    exp_dir: Path,
    name: str,
    draft_model: str | None,
    utterances: Sequence[Utterance],
    asked: Asked,
    setup: Setup,
    output: Path,
    machine: dict,
) -> None:
    """Measure, and write ``output`` (Markdown) with .json and .png beside it.

    Args:
        folder: For the model in everybody's form.
        exp_dir: Our experiment.
        name: Of the model, for tables.
        draft_model: The decode option.
        utterances: Speech and references.
        asked: What shall be compared.
        setup: Where it runs; on a CPU.
        output: Markdown to write.
        machine: As ``describe_machine`` says.

    Raises:
        InputError: The experiment or the speech is not usable.
    """
    if setup.device != "cpu":
        raise InputError(f"--device {setup.device}; allowed with --whisper: cpu")
    subject = make_whisper_subject(folder, name, exp_dir, draft_model, utterances)
    results = transcribe(subject, make_ways(subject, asked), setup)
    kept = [utterance for utterance in utterances if utterance.id in subject.inputs]
    if not results.found:
        reasons = "; ".join(f"{who}: {why}" for who, why in results.left_out.items())
        raise InputError(f"nobody transcribed anything: {reasons or 'no contestant is left'}")
    results.left_out |= {f"{OURS}, drafts": reason for reason in subject.left_out}
    report = make_report(name, kept, results.found, results.left_out, machine)
    write_report(report, output)


def make_ways(subject: WhisperSubject, asked: Asked) -> list[Way]:
    """All ways, search by search, in the order of tables."""
    ways = []
    for search in asked.searches:
        for name in asked.transcribers:
            offered = TRANSCRIBERS[name].weights
            for weights in [one for one in offered if one in (asked.weights or offered)]:
                ways.append(Way(name, weights, search))
                if name == OURS:
                    drafters = [one for one in subject.drafters if one in asked.drafters]
                    ways += [Way(name, weights, search, drafts=drafter) for drafter in drafters]
    return ways


def transcribe(subject: WhisperSubject, ways: Iterable[Way], setup: Setup) -> Transcriptions:
    """All utterances in all ways, in turns of chance; the first one twice, to warm up.

    Who fails is left out from there on, with what was measured of it.
    """
    results, ways = Transcriptions(), [*ways]
    clients: dict[tuple[str, str], Client] = {}
    try:
        for process in dict.fromkeys(way.process for way in ways):
            try:
                clients[process] = Client(
                    subject.folder, *process, setup, worker="peers.speech_worker"
                )
            except ContestantFailed as error:
                results.left_out[", ".join(process)] = str(error)
        ways = [way for way in ways if way.process in clients]
        order, names = random.Random(0), subject.inputs
        for number, name in enumerate(tqdm([names[0], *names], unit="utt", mininterval=2.0)):
            for way in order.sample(ways, len(ways)):
                if way not in ways:
                    continue
                try:
                    found = Transcribed(**clients[way.process].decode(way, [name]))
                except ContestantFailed as error:
                    results.left_out[", ".join(way.process)] = str(error)
                    ways = [other for other in ways if other.process != way.process]
                else:
                    if number:
                        results.found.setdefault(way, {})[name] = found
    finally:
        for client in clients.values():
            client.end()
    results.found = {way: results.found[way] for way in ways if way in results.found}
    return results
