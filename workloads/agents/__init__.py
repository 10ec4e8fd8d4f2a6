"""Real agents as workloads: their tasks, and the client processes that run them."""
