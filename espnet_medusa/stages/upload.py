"""Upload a packed model to the Hugging Face hub (stage 15)."""

import argparse
import tempfile
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.errors import InputError
from espnet_medusa.files.archive import unpack


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--packed_model", type=Path, required=True, help="what stage 14 made")
    parser.add_argument("--hf_repo", required=True, help="USER/NAME")


def work(args: argparse.Namespace) -> None:
    """Unpack and upload.

    Raises:
        ValueError: huggingface_hub or the packed model is missing, or the upload fails.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise ValueError("stage 15 needs huggingface_hub: pip install huggingface_hub") from None
    if not args.packed_model.is_file():
        raise InputError(f"{args.packed_model}: no such file; run stage 14 first")
    with tempfile.TemporaryDirectory() as folder:
        unpack(args.packed_model, folder)
        api = HfApi()
        try:
            api.create_repo(args.hf_repo, exist_ok=True)
            api.upload_folder(repo_id=args.hf_repo, folder_path=folder)
        except HfHubHTTPError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"--hf_repo {args.hf_repo}: {reason}; log in with hf auth") from error


main = make_main("upload", __doc__, add_options, work)


if __name__ == "__main__":
    main()
