"""What the recipe's stages do: jobs, token lists, splitting, merging, scoring."""
