"""The engine: token trees, drafters, searches, and runtimes of the networks."""
