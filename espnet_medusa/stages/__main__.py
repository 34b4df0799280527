"""`python -m espnet_medusa.stages`."""

from espnet_medusa.stages import main

main()
