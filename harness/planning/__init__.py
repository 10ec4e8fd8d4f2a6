"""Which hardware to rent: the cheapest topology and scheduler that meet an objective."""
