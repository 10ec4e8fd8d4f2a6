"""Real engines: vLLM and SGLang replicas on the GPUs (or CPUs) of this machine."""
