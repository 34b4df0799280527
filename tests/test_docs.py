"""README and docs/: links exist, commands parse, figures are those of their sources."""

import argparse
import ast
import importlib
import importlib.util
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from cases import cases
from markdown.extensions.toc import slugify
from refusals import assert_refused

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "espnet" / "upstream")]
import asr_sh_commands  # noqa: E402
import docs_chart  # noqa: E402
import update_docs  # noqa: E402

PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "egs/librispeech/asr1/README.md",
]  # fmt: skip
# Results of measurements; they begin with the command.
RESULTS = [
    *sorted((ROOT / "egs/librispeech/asr1/results").glob("*.md")),
    *sorted((ROOT / "bench/results").rglob("*.md")),
]  # fmt: skip
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
RESULT_TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in RESULTS}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:python|make|espnet-medusa-\w+) [^`]+)`")
PROSE = {page: FENCE.sub("", text) for page, text in TEXTS.items()}
SCRIPTS = dict(re.findall(r'"(espnet-medusa-\w+) = (\S+):main"', (ROOT / "setup.py").read_text()))
by_page = pytest.mark.parametrize("page", TEXTS)


def blocks(*languages: str) -> list:
    """Fenced blocks of all pages and results, for parametrize."""
    return [
        pytest.param(block, id=f"{page}:{text[: text.index(block)].count(chr(10)) + 1}")
        for page, text in (TEXTS | RESULT_TEXTS).items()
        for language, block in FENCE.findall(text)
        if language in languages
    ]


def inline_commands() -> list:
    """Commands within the text, for parametrize; `make` and the like with their arguments."""
    return [
        pytest.param(command, id=f"{page}:{command}")
        for page, text in PROSE.items()
        for command in INLINE.findall(update_docs.BLOCK.sub("", text))
    ]


@by_page
def test_tables_of_figures_are_their_sources(page):
    assert update_docs.fill(TEXTS[page]) == TEXTS[page], "run: python tools/update_docs.py"


@by_page
def test_no_figures_are_typed_into_tables(page):
    rows = re.findall(r"^\|(.*)\|$", update_docs.BLOCK.sub("", PROSE[page]), re.MULTILINE)
    cells = [cell.strip(" *") for row in rows for cell in row.split("|")]
    assert [cell for cell in cells if re.fullmatch(r"[\d.,/]+ ?[%xM]?", cell)] == []


SOURCE = """# Report
## One
|way|batch|WER|
|---|---|---|
|plain|1|4.0 [3.1, 5.0]|
|plain|8|4.1 [3.1, 5.0]|
|drafts|1|**4.0**|
## Two
|way|batch|WER|
|---|---|---|
|plain|1|5.0|
"""


def make_block(lines: str, table: str = "") -> str:
    return f"<!-- from: results.md\n{lines}\n-->\n{table}<!-- end -->"


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(update_docs, "ROOT", tmp_path)
    (tmp_path / "results.md").write_text(SOURCE)
    return tmp_path / "results.md"


def test_a_block_takes_the_rows_and_columns_that_it_names(source):
    lines = "section: {One: '1', Two: '2'}\nrows: {plain | 1: no drafts, drafts: with}\n"
    lines += "columns: {way: '', WER: 'WER [%]'}\nbrief: true"
    table = "\n|  |  | WER [%] |\n| --- | --- | --- |\n"
    table += "| 1 | no drafts | 4.0 |\n| 1 | with | **4.0** |\n| 2 | no drafts | 5.0 |\n\n"
    assert update_docs.fill(make_block(lines)) == make_block(lines, table)
    source.write_text(SOURCE.replace("5.0|", "6.0|"))
    assert "| 2 | no drafts | 6.0 |" in update_docs.fill(make_block(lines, table))
    source.unlink()
    optional = make_block("optional: true\ncaption: Real speech")
    assert update_docs.fill(optional) == optional


@cases(
    (make_block("section: Three"), "no table under 'Three'"),
    (make_block("section: One\nrows: [plain]"), "'plain' matches 2 rows"),
    (make_block("section: One\nrows: [nobody]"), "no row has nobody"),
    (make_block("section: One\ncolumns: [CER]"), "'CER' is not in list"),
    ("<!-- from: results.md\n-->\nText.\n" + make_block("section: One"), "has no end"),
    ("<!-- from: gone.md\nsection: One\n-->\n<!-- end -->", "No such file"),
)
def test_a_block_that_its_source_cannot_fill_is_an_error(block, message, source):
    assert_refused(re.escape(message), update_docs.fill, block, error=SystemExit)


def test_the_chart_shows_the_figures_of_its_source():
    drawn = docs_chart.CHART.read_text(encoding="utf-8")
    assert f">{docs_chart.read_title()}<" in drawn
    for label, milliseconds, rate in docs_chart.read_bars():
        assert f">{label}<" in drawn
        assert f">{milliseconds} ms, WER {rate} %<" in drawn, "run: make docs"


@pytest.mark.parametrize("page", [*TEXTS, *RESULT_TEXTS])
def test_links_exist(page):
    here, prose = ROOT / page, FENCE.sub("", (TEXTS | RESULT_TEXTS)[page])
    for target, anchor in re.findall(r"\]\(<?(?!https?:)([^)#\s>]*)(?:#([^)\s>]+))?>?\)", prose):
        linked = here.parent / target if target else here
        assert linked.exists(), f"{page}: {target}"
        if anchor:
            text = FENCE.sub("", linked.read_text(encoding="utf-8"))
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert anchor in [slugify(heading, "-") for heading in headings], f"{page}: {target}"


@by_page
def test_paths_in_text_exist(page):
    parts = r"`((?:bench|conf|docs|egs|espnet_medusa|tests|tools)/[\w./*-]*)`"
    made = ("/exp", "/dump", "bench/results/MACHINE")
    for path in re.findall(parts, PROSE[page]):
        assert any(ROOT.glob(path.rstrip("/"))) or any(part in path for part in made), path


def test_the_site_builds_without_warnings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")  # the theme's advertisement
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="decode/"' in home and 'src="one_call.svg"' in home
    assert (tmp_path / "egs/mini_synth/asr1/DRAFTERS/index.html").is_file()
    api = (tmp_path / "api/index.html").read_text(encoding="utf-8")
    for name in ("speech2text.Speech2Text.decode", "decode_options.DecodeOptions.acceptance"):
        assert f'id="espnet_medusa.inference.{name}"' in api
    assert "tokens drafted per call" in api, "the text of an option"
    assert "duration of the audio" in api, "a field's comment"


COMMANDS = "espnet2.bin.cli"
OF_ESPNET_202611 = COMMANDS, "espnet2.bin.mcp_server"


class Parsed(Exception):
    """Stops a command after it has parsed its arguments."""


def check_arguments(main, words: list[str], monkeypatch) -> None:
    """Let a command parse its arguments, and do nothing more; `...` allows missing options."""
    parse, elided = argparse.ArgumentParser.parse_args, "..." in words

    def parse_and_stop(parser, *arguments):
        for action in parser._actions if elided else []:
            action.required = False
        parse(parser, *arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    with pytest.raises(Parsed):
        main([word for word in words if word != "..."])


def check_module(name: str, words: list[str], monkeypatch) -> None:
    if name.startswith("espnet_medusa.bin.python"):
        found = importlib.util.find_spec(words[1])
        assert words[0] == "-m" and (found or words[1] in OF_ESPNET_202611), words
        if found and words[1] == COMMANDS:
            importlib.import_module(COMMANDS).build_parser().parse_args(words[2:])
    else:
        check_arguments(importlib.import_module(name).main, words, monkeypatch)


# Variable of the Makefile to the command that gets its value.
MADE = {"BENCH": "compare", "GPU": "gpu", "RELEASE": "release_check"}


def check_make(words: list[str], monkeypatch) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, equals, value = word.partition("=")
        assert re.search(rf"^{name} \?=" if equals else rf"^{name}:", makefile, re.MULTILINE), word
        if name in MADE:
            check_module(MADE[name], shlex.split(value), monkeypatch)


@cache
def script_options(script: Path) -> frozenset[str]:
    """Return the options of a recipe's script and of scripts that it passes others on to."""
    text = script.read_text()
    listed = re.search(r"^# options\n(.*?)^# end of options", text, re.MULTILINE | re.DOTALL)
    options = frozenset(re.findall(r"^(\w+)=", listed[1], re.MULTILINE)) if listed else frozenset()
    if re.search(r"^parse_options ", text, re.MULTILINE):
        return options
    called = {script.parent / name for name in re.findall(r"\./(\w+\.sh)\b", text)} - {script}
    called = {other for other in called if other.name not in ("path.sh", "cmd.sh")}
    return options.union(*map(script_options, called))


def check_script(script: Path, words: list[str]) -> None:
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert {name.removeprefix("--") for name in options} <= script_options(script) | {"help"}
    for system in options.get("--heads", "").split():
        kind = re.sub(r"_\d+(heads)?$", "", system)
        assert (script.parent / f"conf/train_{kind}.yaml").exists(), system


def expand_functions(block: str) -> str:
    """Replace calls of shell functions, which end in "$@", by their bodies."""
    while function := re.search(r"(?ms)^(\w+)\(\) \{\n(.*?)\n\}\n", block):
        command = function[2].strip().removesuffix('"$@"')
        block = block.replace(function[0], "")
        block = re.sub(rf"(?m)^[ \w=]*\b{function[1]} ", lambda _, command=command: command, block)
    return block


@pytest.mark.parametrize("block", [*blocks(""), *inline_commands()])
def test_commands_of_pages_parse(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    variables = {}
    for line in expand_functions(block.replace("\\\n", " ")).splitlines():
        line = re.sub(r"\$(\w+)", lambda match: variables[match[1]], line)
        for command in line.split(" && "):
            if words := shlex.split(command, comments=True):
                variables.update(check_command(words, monkeypatch))


def check_command(words: list[str], monkeypatch) -> dict[str, str]:
    """Check a command; return the shell variable that it sets, if any."""
    programs, (name, *rest) = (ROOT / "bench", ROOT / "tests" / "endurance"), words
    if variable := re.fullmatch(r"(\w+)=(.*)", name):
        return check_command(rest, monkeypatch) if rest else {variable[1]: variable[2]}
    if name == "cd":
        monkeypatch.chdir(rest[0])
    elif name == "make":
        check_make(rest, monkeypatch)
    elif name == "python" and rest[0] == "-m":
        check_module(rest[1], rest[2:], monkeypatch)
    elif name == "python" and Path(rest[0]).resolve().parent in programs:
        assert Path(rest[0]).is_file()
        check_module(Path(rest[0]).stem, rest[1:], monkeypatch)
    elif name.startswith("./"):
        check_script(Path.cwd() / name, rest)
    elif name in SCRIPTS:
        check_module(SCRIPTS[name], rest, monkeypatch)
    else:
        assert name in (".", "cat", "echo", "export", "mv", "pip", "sed"), words  # not ours
    return {}


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    names = "asr_inference", "asr_train", "convert", "report", "s2t_inference", "transcribe", "tune"
    modules = {name: importlib.import_module(f"espnet_medusa.bin.{name}") for name in names}
    modules |= {name: importlib.import_module(name) for name in MADE.values()}
    command_line = importlib.import_module("espnet_medusa.data.command_line")
    return {
        name: module.get_parser()
        if hasattr(module, "get_parser")
        else command_line.make_parser(module.__doc__, module.add_options)
        for name, module in modules.items()
    }


def option_names(parser: argparse.ArgumentParser) -> set[str]:
    return {option.lstrip("-") for action in parser._actions for option in action.option_strings}


@by_page
def test_options_in_text_are_options(page):
    known = set().union(*map(option_names, parsers().values()))
    for script in ROOT.glob("egs/*/asr1/*.sh"):
        known |= script_options(script)
    # Those of ESPnet's own asr.sh and commands, and of python with the plugin.
    known |= asr_sh_commands.OPTIONS | {"stream", "live", "no-redirect"}
    text = INLINE.sub("", PROSE[page])
    named = re.findall(r"(?<![\w-])--([a-z][\w-]*)", " ".join(re.findall(r"`[^`]+`", text)))
    assert set(named) <= known


def rows_of(title: str) -> list[str]:
    """Names in the first cells of the tables of a section of docs/options.md."""
    section = TEXTS["docs/options.md"].split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)))


def test_decode_options_and_configs_are_all_documented():
    from espnet_medusa.inference.decoding_command import DECODE_OPTIONS

    named = set(re.findall(r"`([a-z_0-9]+)`", TEXTS["docs/options.md"]))
    assert set(rows_of("Decode options")) <= option_names(parsers()["asr_inference"])
    assert {*DECODE_OPTIONS} <= named
    strategies = [path.stem for path in (ROOT / "conf/decode").glob("*.yaml")]
    assert sorted(rows_of("Strategies")) == sorted(strategies)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_training_configs_have_known_options(block):
    actions = {action.dest: action for action in parsers()["asr_train"]._actions}
    if "_target_" in block or block.startswith("parallel"):
        return  # of ESPnet3
    for name, value in yaml.safe_load(block).items():
        assert name in actions, name
        if actions[name].choices:
            assert value in actions[name].choices, f"{name}: {value}"


@pytest.mark.parametrize("block", blocks("python"))
def test_python_compiles_and_its_imports_exist(block):
    tree = ast.parse(block)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if any(getattr(node, "module", "").startswith("espnet3.") for node in imports):
        pytest.importorskip("espnet3.publication", reason="ESPnet 202511 has no ESPnet3")
    exec(compile(ast.Module(imports, []), "<page>", "exec"), {})
