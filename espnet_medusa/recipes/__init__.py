"""Functions of the recipe's stages: jobs, token lists, splitting, merging, scoring."""
