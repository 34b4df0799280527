"""Commands that people type: options, one call, errors as one line."""
