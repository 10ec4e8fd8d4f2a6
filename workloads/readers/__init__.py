"""Readers of other trace formats: each turns a recorded file into sessions, streaming."""
