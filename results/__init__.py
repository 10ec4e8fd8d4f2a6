"""Results: the run directory, metric definitions, statistics, published figures, reports."""
