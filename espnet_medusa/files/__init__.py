"""Files: archives, checkpoints, caches, YAML and atomic writes."""
