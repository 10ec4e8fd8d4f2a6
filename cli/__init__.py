"""Command line: one module per command. They parse, call and print; the work is elsewhere."""
