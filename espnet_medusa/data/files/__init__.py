"""Archives, checkpoints, caches, YAML, token lists, output folders and atomic writes."""
