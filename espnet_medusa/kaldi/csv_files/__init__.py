"""CSV files: to data directories, and decoding results back beside their rows."""
