"""Control plane: session records, waiting turns, capacity, cache evidence; sans-IO."""
