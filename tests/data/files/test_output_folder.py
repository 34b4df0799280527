"""Cached outputs: several processes write one folder, each once."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from espnet_medusa.data.files.output_folder import cached_output, staged_output


def test_those_who_wait_for_a_folder_do_not_write_it(tmp_path):
    folder, start = tmp_path / "cache" / "model", Barrier(4)

    def open_folder(_) -> bool:
        start.wait()
        with cached_output(folder, "inputs") as staging:
            if staging is not None:
                (staging / "weights").write_text("written")
        assert (folder / "weights").read_text() == "written"
        return staging is not None

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(open_folder, range(4))) == 1
    with cached_output(folder, "other inputs") as staging:
        assert staging is not None


def test_a_linked_folder_stays_a_link_and_its_target_is_replaced(tmp_path):
    target, linked = tmp_path / "disk" / "output", tmp_path / "output"
    target.mkdir(parents=True)
    linked.symlink_to(target)
    for content in ("first", "second"):
        with staged_output(linked, content) as staging:
            (staging / "file").write_text(content)
        assert linked.is_symlink() and (target / "file").read_text() == content
    assert [path.name for path in target.parent.iterdir()] == ["output"]
