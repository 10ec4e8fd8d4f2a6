"""Workloads: sessions, turns and tool calls; trace formats; generators; agent drivers."""
