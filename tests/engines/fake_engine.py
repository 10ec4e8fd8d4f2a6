"""Stands for an engine's API server: the routes that the launcher uses, with a prefix cache that
is a set of texts. What goes wrong is said by FAKE, one word. It starts a child, as engines do."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAKE = os.environ.get("FAKE", "")
BLOCK = 32
seen: set[str] = set()
resets = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = b""
        if self.path == "/version":
            page = json.dumps({"version": "0.32.0"}).encode()
        if self.path == "/metrics":
            page = b'vllm:cache_config_info{block_size="32",num_gpu_blocks="100"} 1.0\n'
        self.answer(503 if FAKE == "never-ready" else 200, page)

    def do_POST(self) -> None:
        global resets
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.startswith("/reset_prefix_cache"):
            resets += 1
            if FAKE == "no-reset":
                self.answer(404, b"{}")
                return
            if FAKE == "busy" and resets % 3:
                self.answer(200, b'{"success": false}')
                return
            if FAKE != "remembers":
                seen.clear()
            self.answer(200, b'{"success": true}')
            return
        if FAKE == "mute":
            self.answer(500, b'{"error": "no"}')
            return
        prompt = str(json.loads(body)["prompt"])
        tokens = len(prompt) // 4
        cached = tokens // BLOCK * BLOCK if prompt in seen else 0
        seen.add(prompt)
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": 1,
            "prompt_tokens_details": None if FAKE == "silent" else {"cached_tokens": cached},
        }
        self.answer(200, json.dumps({"usage": usage}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m")
    parser.add_argument("--port", type=int)
    given, _ = parser.parse_known_args()
    # Out of the process tree at once, as daemons do, and without our environment.
    program = "import os, time; os.fork() and os._exit(0); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", program], env={"MARK": f"fake-{given.port}"})
    if FAKE == "oom":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        sys.exit(1)
    if FAKE == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if FAKE == "slow":
        time.sleep(3)
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
