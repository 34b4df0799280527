"""Copy a recipe of the package to a new folder.

    espnet-medusa-recipe mini_synth my_recipes
    cd my_recipes/egs/mini_synth/asr1 && ./run.sh

The folder gets `egs/RECIPE`, `egs/TEMPLATE` and `conf`, with symbolic links, and for ESPnet3
`egs3/RECIPE` if there is one.
"""

import argparse
import sys
import tarfile
from pathlib import Path

from espnet_medusa.data.command_line import make_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import naming
from espnet_medusa.data.options import check_choice

ARCHIVE = Path(__file__).with_name("recipes.tar.gz")  # setup.py writes it into the wheel
TEMPLATE = "TEMPLATE"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="folder in egs/; an unknown name lists all")
    parser.add_argument("folder", nargs="?", type=Path, help="new folder; default: RECIPE")


def work(args: argparse.Namespace) -> None:
    """Copy a recipe; raise InputError for an unknown name or an existing folder."""
    if not ARCHIVE.is_file():
        raise InputError(
            f"{ARCHIVE}: not in an editable installation; the recipes are in egs/ of the checkout"
        )
    with tarfile.open(ARCHIVE) as archive:
        parts = {member: Path(member.name).parts for member in archive.getmembers()}
        names = sorted({part[1] for part in parts.values() if part[0] == "egs"} - {TEMPLATE})
        check_choice(args.recipe, names, "recipe")
        folder = args.folder or Path(args.recipe)
        if folder.exists():
            raise InputError(f"folder: {folder} exists already; name a new one")
        folders = {("egs", args.recipe), ("egs", TEMPLATE), ("egs3", args.recipe)}
        chosen = [one for one, part in parts.items() if part[0] == "conf" or part[:2] in folders]
        with naming(folder):
            archive.extractall(folder, chosen)
    for script in sorted(folder.glob(f"egs/{args.recipe}/*/run.sh")):
        print(f"cd {script.parent} && ./run.sh", file=sys.stderr)
    for script in sorted(folder.glob(f"egs3/{args.recipe}/*/run.py")):
        print(f"cd {script.parent} && python run.py --help    # ESPnet3", file=sys.stderr)


main = make_main("recipe", __doc__, add_options, work)
