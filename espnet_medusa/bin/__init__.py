"""The commands that users type. Importing this package makes their start and threads faster."""

from espnet_medusa.decoding.runtime.process import shorten_openmp_spin
from espnet_medusa.espnet.upstream.hooks import make_imports_quiet

shorten_openmp_spin()
make_imports_quiet()
