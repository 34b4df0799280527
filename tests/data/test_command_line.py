"""Help of commands: the first options alone, and all options in groups."""

import re

import pytest

from espnet_medusa.bin import transcribe


def options_in(text: str) -> set[str]:
    return {*re.findall(r"^  (?:-h, )?--(\w+)", text, flags=re.M)}


def help_of(option: str, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        transcribe.main([option])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_first_options_and_help_all_the_others_in_groups(capsys):
    first, full = (help_of(option, capsys) for option in ("--help", "--help_all"))
    assert options_in(first) == {*transcribe.FIRST, "help", "help_all"} - {"audio"}
    assert options_in(first) < options_in(full)
    assert {"draft_depth", "vad_parameters", "batch_size"} <= options_in(full)
    words = full[full.index("Word times:") :]
    assert {"word_times", "prepend_punctuations"} <= options_in(words)
    assert "draft_depth" not in options_in(words)
