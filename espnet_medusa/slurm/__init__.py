"""Stages' jobs as array jobs of Slurm: what is asked for, submitted, waited for and reported."""
