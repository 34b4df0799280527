"""What all other rooms read: audio, Kaldi tables, files, options, errors."""
