"""Real agents in a live cell: their client processes, and the records of what they did."""
