"""Schedulers: pure policies, one file each. Events in, commands out; no clock, no sockets."""
