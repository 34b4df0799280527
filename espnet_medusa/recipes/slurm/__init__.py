"""Runs the jobs of recipe stages as Slurm array jobs: options, script, queue, failures."""
