"""What extends ESPnet: registration, tasks, import hooks, training."""
