"""Code that an engine's own interpreter runs; it imports nothing of this project."""
