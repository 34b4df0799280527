"""Commands that recipes call, stage by stage: `python -m espnet_medusa.stages.NAME`."""
