"""Harness: the control plane and its two drivers, simulation and live gateway."""
