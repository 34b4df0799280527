"""Whether all that take part in a decoding have the same packages."""

from collections.abc import Mapping

PACKAGES = ("espnet_medusa", "espnet", "torch", "transformers", "numpy")  # what texts depend on
COMPARED = ("python", "dask", "distributed", *PACKAGES)


def version_difference(
    own: Mapping[str, str | None], others: Mapping[str, Mapping[str, str | None]]
) -> str | None:
    """The first package whose versions differ, as one line; None: there is none.

    Builds of one version, such as torch's for CUDA and for CPUs, count as the same, and so do
    Pythons of one minor version.

    Args:
        own: Package to version of the process that hands out the work; None: not installed.
        others: Who takes part to the same.
    """
    for package in COMPARED:
        here = _comparable(package, own.get(package))
        for name, versions in others.items():
            there = _comparable(package, versions.get(package))
            if here != there:
                return (
                    f"{name} has {package} {there or 'not installed'}, this machine has "
                    f"{here or 'none'}; install the same versions everywhere"
                )
    return None


def _comparable(package: str, version: str | None) -> str | None:
    if version is None:
        return None
    parts = version.split("+")[0].split(".")
    return ".".join(parts[:2] if package == "python" else parts)
