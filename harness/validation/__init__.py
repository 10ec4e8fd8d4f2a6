"""How far the simulator is from other engines and simulators, and fits to recorded runs."""
