"""Which scheduler for which traffic: a map of played regimes, and where a trace lies on it."""
