"""A page (one HTML file) that shows decodings: text, drafts, decoder calls, milliseconds."""
