"""A Harbor environment on bubblewrap, for machines without containers.

`/app`, `/tests`, `/solution` and the like are folders of the trial; programs are the host's,
read-only. A task's image is not used: of its Dockerfile, WORKDIR, ENV and COPY are followed, and
RUN steps cannot be, so a task that has them is refused unless told otherwise. There is no network
inside, whatever a task allows, but ways to the gateway and to who listens to hooks. Commands run
as the sandbox's only user.

Runs under Harbor's interpreter (Harbor's BaseEnvironment, version 0.26).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from workloads.agents.bubblewrap import SandboxSpec
from workloads.agents.bubblewrap_machine import Machine
from workloads.agents.harbor_recipe import DEFAULT_FOLDER, Recipe, read_dockerfile


class BubblewrapEnvironment(BaseEnvironment):
    """One sandbox a trial.

    Args:
        folder: where sandboxes' files go, which are not kept.
        reach: base URLs that processes inside may reach, each under its port on their loopback.
        programs: host folders shown read-only at the same place.
        links: names in the search path, and the programs they stand for.
        ignore_run: start a task although its Dockerfile has steps that cannot be followed.
    """

    def __init__(
        self,
        *args: Any,
        folder: str,
        reach: Sequence[str] = (),
        programs: Sequence[str] = (),
        links: Mapping[str, str] | None = None,
        ignore_run: bool = False,
        **kwargs: Any,
    ) -> None:
        self._folder = Path(folder)
        self._reach, self._programs, self._links = reach, programs, links or {}
        self._ignore_run = ignore_run
        self._machine: Machine | None = None
        self._recipe = Recipe()
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True, mounted=True)

    def _validate_definition(self) -> None:
        dockerfile = self.environment_dir / "Dockerfile"
        if dockerfile.is_file():
            self._recipe = read_dockerfile(dockerfile.read_text())
        elif self.task_env_config.docker_image:
            self._recipe.left_out.append(f"image {self.task_env_config.docker_image}")
        if (self.environment_dir / "docker-compose.yaml").is_file():
            self._recipe.left_out.append("docker-compose.yaml")
        if self._recipe.left_out and not self._ignore_run:
            raise ValueError(
                f"{self.environment_name} needs its image ({self._recipe.left_out[0]!r}), which "
                "bubblewrap cannot build; use containers, or set `ignore_run: true` to go on "
                "with this machine's programs"
            )

    async def start(self, force_build: bool) -> None:
        root = self._folder / self.session_id
        root.mkdir(parents=True)
        binds = [
            (Path(mount["source"]), str(mount["target"]))
            for mount in self._host_mounts
            if mount["type"] == "bind"
        ]
        for source, _ in binds:
            source.mkdir(parents=True, exist_ok=True)
        folder = self.task_env_config.workdir or self._recipe.folder
        for inside in (folder, DEFAULT_FOLDER, "/logs/agent", "/logs/verifier", "/logs/artifacts"):
            (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self._lay_links(root)
        spec = SandboxSpec(
            root,
            read_only=[(Path(path), path) for path in self._programs],
            writable=binds,
            environment={**self._recipe.environment, **self._startup_env(), "TERM": "xterm"},
            folder=folder,
        )
        self._machine = Machine(
            spec, self._reach, self.trial_paths.trial_dir / f"{self.session_id}.log"
        )
        await self._machine.start()
        for copied, into in self._recipe.copies:
            await self._copy(copied, into)
        await self._upload_environment_dir_after_start()

    def _lay_links(self, root: Path) -> None:
        folder = root / "root/.local/bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name, program in self._links.items():
            (folder / name).symlink_to(program)

    async def _copy(self, source: str, target: str) -> None:
        path = (self.environment_dir / source).resolve()
        if not path.is_relative_to(self.environment_dir.resolve()):
            raise ValueError(f"COPY {source} leads out of {self.environment_dir}")
        if not path.is_dir() and target.endswith("/"):
            target += path.name
        await self._up().put(path, target)

    def _up(self) -> Machine:
        if self._machine is None:
            raise RuntimeError("the sandbox has not been started")
        return self._machine

    async def stop(self, delete: bool) -> None:
        if self._machine is not None:
            await self._machine.stop()
        if delete:
            shutil.rmtree(self._folder / self.session_id, ignore_errors=True)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._up().put(Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._up().put(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._up().get(source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        target = Path(target_dir)
        target.mkdir(parents=True, exist_ok=True)
        await self._up().get(source_dir, target)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        found = await self._up().execute(
            command, folder=cwd, environment=self._merge_env(env), timeout_s=timeout_sec
        )
        return ExecResult(stdout=found.stdout, stderr=found.stderr, return_code=found.status)
