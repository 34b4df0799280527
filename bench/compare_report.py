"""Tables and plots of the comparison, from the results in one machine's folder.

python bench/compare_report.py bench/results/MACHINE        # writes them anew
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from compare_plots import plot_calls, plot_roofline, plot_speedup

from espnet_medusa.report.markdown import markdown_table

MEGA = 1e6
NOTES = """\
Notes

- One process for each contestant and type of weights, {threads} threads each; they take turns on
  each input while the others sleep. Figures are medians (quartiles) over inputs, or batches, of
  medians over rounds. *ms a token*: decoder, the end symbol counted where it is decoded. *ms an
  input*: with the encoder.
- *slower than ours*: time of the row over that of ours with drafts (the fastest drafter in float32,
  and the fastest with any weights: the rows with 1.00), the same inputs, the encoder included;
  more than 1: ours is faster.
- *tokens, nodes a call*: written by a call of the main decoder, evaluated in it. CTC's projection
  and the draft model's calls count as time of the decoder and nowhere else. The draft model is that
  of *transformers assisted*, a smaller decoder on the same memory. bfloat16 has drafts by heads
  alone.
- *same tokens*: inputs whose best hypothesis is that of ours in float32 without drafts, one by one.
- *MB*: most memory (maximum resident set size) of a process that
  decodes one input in this way alone, imports left out; in brackets what it held before it loaded
  its decoder.
- CTranslate2 {ctranslate2} is the engine of faster-whisper. transformers is {transformers},
  openai-whisper {openai-whisper}, ESPnet {espnet}, torch {torch}. *espnet uncached* is ESPnet's
  BatchBeamSearch (beam 1 for greedy) over a decoder that recomputes its prefixes, as its own
  Whisper does.
- Nobody normalises scores by length, nobody has CTC or a language model. Each ends a beam by its
  own rule.
- Trained models: everybody decodes the memory that our encoder makes in float32 of each utterance
  without padding, in their own process: none of the peers can express its 4x subsampling. Peers'
  decoders have no mask for padding, so in batches they attend to zeros behind the shorter memories;
  utterances of about the same length are together.
- Random weights: memories of 1500 random frames, the same number of tokens from everybody. *drafts
  replayed*: heads with random weights accept nothing. All work of drafting is done, then its tokens
  are replaced by those of the plain search, recorded beforehand, as many as calls of trained heads
  took (or the number of tokens a call that is stated). Heads project onto a draft vocabulary of
  4096 tokens; whatever acceptance that would cost is not in the figures. These rows show speed at
  a stated acceptance, not acceptance.
"""


def main() -> None:
    write_report(Path(sys.argv[1]))


def write_report(folder: Path) -> None:
    """Write ``comparison.md`` and the plots of all results in a folder."""
    results = read_results(folder)
    machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    text = report_markdown(results, machine)
    (folder / "comparison.md").write_text(text, encoding="utf-8")
    plot_calls(results, folder / "calls.png")
    plot_speedup(results, folder / "speedup.png")
    plot_roofline(results, machine, folder / "roofline.png")


def read_results(folder: Path) -> list[dict]:
    """Results of subjects: trained ones first, then random ones, small ones first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    results = [one for one in found if "subject" in one]
    return sorted(results, key=lambda one: (one["fixed_tokens"] or 0, one["sizes"]["hidden_size"]))


def report_markdown(results: Sequence[dict], machine: dict) -> str:
    """All tables."""
    parts = [f"# Whisper decoders compared: {machine['device']}, {machine['processor']}\n"]
    for result in results:
        parts.append(f"## {result['subject']}: {describe(result)}\n")
        for search, batch_size in dict.fromkeys(
            (row["search"], row["batch_size"]) for row in result["rows"]
        ):
            group = [
                row
                for row in result["rows"]
                if (row["search"], row["batch_size"]) == (search, batch_size)
            ]
            parts.append(f"### {search}, batch {batch_size}\n\n{table(group, result)}")
        left_out = [f"- {name}: {reason}" for name, reason in result["left_out"].items()]
        if left_out:
            parts.append("Left out:\n\n" + "\n".join(left_out) + "\n")
    versions = results[0]["machine"]["versions"] if results else machine["versions"]
    known = {name: versions.get(name, "not installed") for name in machine["versions"]}
    names = ("torch", "transformers", "ctranslate2", "openai-whisper", "espnet")
    parts.append(machine_table(machine))
    parts.append(
        NOTES.format(
            threads=(results[0]["machine"] if results else machine)["threads"],
            **{name: known.get(name, "not installed") for name in names},
        )
    )
    return "\n".join(parts)


def describe(result: dict) -> str:
    """Sizes and inputs in words."""
    sizes = result["sizes"]
    words = (
        f"{sizes['layers']} decoder layers of {sizes['hidden_size']}, vocabulary "
        f"{sizes['vocab_size']}, {result['inputs']} "
    )
    if result["fixed_tokens"]:
        return words + f"random memories, {result['fixed_tokens']} tokens each"
    return words + "utterances"


def table(rows: Sequence[dict], result: dict) -> str:
    """One search at one batch size."""
    titles = ["contestant", "weights", "ms a token", "ms an input", "tokens, nodes a call"]
    titles += ["slower than ours float32", "slower than ours at its fastest"]
    scored = "wer" in rows[0]
    titles += ["encoder ms", "RTF", "WER"] * scored + ["same tokens", "MB"]
    lines = []
    fastest = min(row["ms_per_input"][1] for row in rows)
    for row in rows:
        per_input = f"{row['ms_per_input'][1]:.1f}"
        cells = [row["label"], row["weights"], spread(row["ms_per_token"], 2)]
        cells.append(f"**{per_input}**" if row["ms_per_input"][1] == fastest else per_input)
        calls = row["measured_tokens_per_call"]
        cells.append("" if calls is None else f"{calls:.2f}, {row['nodes_per_call']:.1f}")
        cells += [spread(row.get(name), 2) for name in ("times_ours_float32", "times_ours_fastest")]
        if scored:
            cells += [f"{row['encoder_ms']:.1f}", f"{row['rtf']:.4f}", f"{row['wer']:.1f}"]
        same = row["same_tokens"]
        cells.append("" if same is None else f"{same}/{result['inputs']}")
        cells.append(memory(row))
        lines.append(cells)
    return markdown_table(titles, lines, text_columns=2)


def spread(quartiles: Sequence[float] | None, digits: int) -> str:
    """Median (lower to upper quartile)."""
    if quartiles is None:
        return ""
    low, middle, high = (f"{value:.{digits}f}" for value in quartiles)
    return f"{middle} ({low}-{high})"


def memory(row: dict) -> str:
    """Megabytes: peak (before the decoder was loaded)."""
    if "peak_bytes" not in row:
        return ""
    return f"{row['peak_bytes'] / MEGA:.0f} ({row['start_bytes'] / MEGA:.0f})"


def machine_table(machine: dict) -> str:
    """Bandwidth and rates that were measured."""
    rows = [[name, f"{rate:.1f} GB/s"] for name, rate in machine["bandwidth"].items()]
    rows += [[f"GEMM {name}", f"{rate:.0f} GFLOP/s"] for name, rate in machine["gemm"].items()]
    images = [f"![{name}]({name.lower()}.png)" for name in ("Calls", "Speedup", "Roofline")]
    table = markdown_table(("measured", ""), rows, text_columns=1)
    return "\n".join(["## The machine\n", table, "\n\n".join(images), ""])


if __name__ == "__main__":
    main()
