"""Cells on real vLLM replicas on CPUs, recorded from inside: what the simulator is held against.

A small generated trace is replayed through the gateway, whose text repeats as agents' does, on two
replicas of a tiny model whose KV cache is too small for it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentsched import AgentschedError
from harness.cells import CellFailure, run_cell
from harness.fleets import fleet_of, started
from harness.live.engines.fleet import EngineFleet
from harness.live.engines.layout import Place
from harness.live.engines.probe import EngineProbe, probe_text
from harness.plan import plan
from harness.spec import load_spec
from harness.validation.engine_fit import Call, write_calls
from results.store import RunStore
from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.trace import write_trace

RECORDER = Path(__file__).parent / "inside_engine"
SCHEDULERS = ("round-robin", "session-affinity", "cache-aware", "smetric", "tao")
BLOCK = 32
KV_TOKENS = 2816
"""Of each replica: less than half of what all active sessions hold. Our choice, as all of these."""
MODEL_LEN = 2560
STEP_TOKENS = 512
STEP_SEQUENCES = 16
WORKERS = 10
SESSIONS = 20
TURNS = 12
GUIDE_TOKENS = 256
NEW_TOKENS = (30, 150)
OUTPUT_TOKENS = (4, 16)
GAPS_S = (0.75, 2.25)
"""Tool times, seconds: long beside the turns, and many turns to a session, so that caching hangs
little on how busy the processor is: simulated with the stalls of a machine that others kept busy
(8 ms a step on average, a hundredth of the steps 160 ms or more) hit rates moved by 1.3 points at
most."""
SETTINGS: Mapping[str, Mapping[str, str]] = {"session-affinity": {"first_turn": "rendezvous"}}
"""Sessions go to the replica of their id: that of fewest turns in flight hangs on the moment, and
at ties it is always the first."""

QUIET = ("VLLM_ENABLE_V1_MULTIPROCESSING=0",)
"""Lets the engine compute in its own process. Its worker process would spin for a second after each
step (vllm/distributed/device_communicators/shm_broadcast.py, `busy_loop_s`), so that two replicas
would keep two cores busy for nothing; vllm/platforms/cpu.py wants one for the sake of OpenMP
threads, of which there is one here."""

SWEEP_PROMPTS = (64, 256, 512, 1024, 2048)
SWEEP_BATCHES = (1, 1, 1, 2, 4, 8)
SWEEP_OUTPUT = 24
"""Shapes that step times are fitted on: so many equal prompts at once, if they fit."""


def small_trace(sessions: int = SESSIONS, turns: int = TURNS, seed: int = 0) -> list[Session]:
    """Multi-turn sessions on one of two shared beginnings, with tools between the turns.

    Agents send their replies rewritten, in other words: a text of random tokens comes back from
    the tokenizer as other tokens than the model made, which is nothing that a trace could say.
    """
    rng = random.Random(f"{seed}/engine trace")
    guides = [Segment(f"guide {name}", GUIDE_TOKENS, 4 * GUIDE_TOKENS) for name in "ab"]
    made = []
    for number in range(sessions):
        lines: list[TurnSpec] = []
        held = guides[number % 2].tokens
        for index in range(turns):
            new, output = rng.randint(*NEW_TOKENS), rng.randint(*OUTPUT_TOKENS)
            tools = (ToolCall("tool", round(rng.uniform(*GAPS_S), 3)),)
            lines.append(
                TurnSpec(
                    new_tokens=new,
                    output_tokens=output,
                    kept_turn=index - 1 if index else None,
                    kept_tokens=held if index else 0,
                    shared=() if index else (guides[number % 2],),
                    tools=tools if index < turns - 1 else (),
                )
            )
            held = lines[-1].prompt_tokens
        made.append(Session(f"s{number:02d}", tuple(lines), "engine-trace", "generated"))
    return made


def write_spec(
    folder: Path,
    environment: str | None,
    *,
    schedulers: Sequence[str] = SCHEDULERS,
    seeds: int = 3,
    sessions: int = SESSIONS,
) -> Path:
    """The specification of the cells, with its trace and topology beside it.

    Args:
        environment: of the engine; None: where `agentsched engine install` puts it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_trace(folder / "engine-trace.jsonl", small_trace(sessions))
    (folder / "topology.yaml").write_text(
        "name: cpu-scarce\ndescription: two replicas on CPUs, with hardly any KV cache\n"
        "nodes:\n  - {gpu: cpu, gpus: 1, count: 2}\nreplicas:\n"
        f"  - {{tensor_parallel: 1, count: 2, kv_cache_gib: {KV_TOKENS / 2**20!r}}}\n",
        "utf-8",
    )
    args = ["--scheduler-cls", "agentsched_recorder.RecordingScheduler"]
    env = [f"PYTHONPATH={RECORDER}", f"AGENTSCHED_STEPS={folder.resolve() / 'steps'}", *QUIET]
    launch = {
        "environment": environment,
        "base_port": 0,
        "kv_tokens": KV_TOKENS,
        "max_num_batched_tokens": STEP_TOKENS,
        "max_num_seqs": STEP_SEQUENCES,
        "scheduling": "fcfs",
        "cpu_threads": 1,
        "extra_args": args,
        "extra_env": env,
    }
    lines = [
        "name: engine",
        "model: tiny-qwen3",
        f"topology: {folder.resolve() / 'topology.yaml'}",
        "engine: vllm-cpu",
        f"schedulers: [{', '.join(schedulers)}]",
        f"seeds: {seeds}",
        f"memory: {{block_size: {BLOCK}, max_model_len: {MODEL_LEN}}}",
        "workloads:",
        f"  - {{name: engine-trace.jsonl, workers: [{min(WORKERS, sessions)}]}}",
        "sim: {sampling_interval_s: 0.5}",
        "engine_settings:",
        f"  max_num_batched_tokens: {STEP_TOKENS}",
        f"  max_num_seqs: {STEP_SEQUENCES}",
        "  async_scheduling: false",
        f"scheduler_settings: {_yaml({n: SETTINGS[n] for n in schedulers if n in SETTINGS})}",
        "launch:",
        *(f"  {key}: {_yaml(value)}" for key, value in launch.items() if value is not None),
    ]
    path = folder / "spec.yaml"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(repr, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    return str(value)


def record(spec: Path, out: Path, tell: Callable[[str], None] = lambda line: None) -> list[float]:
    """Start the replicas, sweep single shapes on them, run all cells, stop them.

    Args:
        out: the run folder to make; the engines' notes go to `steps` beside the specification.

    Returns:
        The machine's load at the end of each cell.

    Raises:
        AgentschedError: an engine did not come up, or a cell failed.
    """
    planned = plan(load_spec(spec))
    (spec.parent / "steps").mkdir(exist_ok=True)
    with (
        fleet_of(planned, out) as fleet,
        RunStore.open(out, planned.spec.text, planned.manifest(planned.label)) as store,
    ):
        assert isinstance(fleet, EngineFleet)
        running = started(fleet, store.path)
        tell("replicas are up; single shapes")
        write_calls(spec.parent / "sweep.json", sweep(fleet))
        jobs, loads = planned.jobs(store.path.resolve()), []
        for number, job in enumerate(jobs):
            tell(f"cell {number + 1} of {len(jobs)}: {job.cell.name}")
            ended = run_cell(running.prepare(job), lambda sessions, turns: None)
            if isinstance(ended, CellFailure):
                raise AgentschedError(f"{job.cell.name}: {ended.message}", ended.remedy)
            loads.append(os.getloadavg()[0])
    return loads


def sweep(fleet: EngineFleet) -> list[Call]:
    """Equal prompts at once, on all replicas at the same time, as they are in the cells."""
    calls: list[Call] = []
    shapes = [(prompt, batch) for prompt in SWEEP_PROMPTS for batch in SWEEP_BATCHES]
    shapes = [(prompt, batch) for prompt, batch in shapes if prompt * batch <= KV_TOKENS]
    for number, (prompt, batch) in enumerate(shapes):

        def call(
            place: Place, row: int, number: int = number, prompt: int = prompt, batch: int = batch
        ) -> Call:
            probe = EngineProbe(place, "127.0.0.1", "vllm", fleet.model)
            text = probe_text(f"sweep {number} {row}", prompt)
            sent = time.monotonic_ns()
            probe.generate(text, SWEEP_OUTPUT)
            return Call(place.name, prompt, batch, sent, time.monotonic_ns())

        with ThreadPoolExecutor(batch * len(fleet.places)) as pool:
            waits = [pool.submit(call, p, row) for p in fleet.places for row in range(batch)]
            calls += [wait.result() for wait in waits]
    return calls
