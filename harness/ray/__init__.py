"""Beyond one machine: cells as Ray tasks, replicas as Ray actors."""
