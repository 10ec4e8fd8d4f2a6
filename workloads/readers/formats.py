"""Every trace format that can be read: its name, its reader, and what gives it away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workloads.model import Session
from workloads.readers.abench import ABenchSettings, read_abench
from workloads.readers.atif import AtifSettings, read_atif
from workloads.readers.azure import read_azure
from workloads.readers.bailian import BailianSettings, read_bailian
from workloads.readers.claude_code import ClaudeCodeSettings, read_claude_code
from workloads.readers.lmcache import LmcacheSettings, read_lmcache
from workloads.readers.mini_swe_agent import MiniSettings, read_mini_swe_agent
from workloads.readers.mooncake import read_mooncake
from workloads.readers.mooncake_sessions import MooncakeSessionSettings, read_mooncake_sessions
from workloads.readers.thunderagent import HEADER, ThunderAgentSettings, read_thunderagent
from workloads.readers.tracelab import TraceLabSettings, read_tracelab
from workloads.readers.weka import WekaSettings, read_weka
from workloads.readers.weka_files import read_weka_files
from workloads.trace import read_trace


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format that can be read."""

    name: str
    description: str
    read: Callable[..., Iterator[Session]]
    """Of a path and, where `settings` is given, of settings or None."""
    keys: tuple[frozenset[str], ...]
    """Fields of the first line, or of the document, that only this format has together; any one
    of the sets."""
    settings: Callable[..., Any] | None = None
    """Dataclass of what can be set."""
    folder: str | None = None
    """What the files of a folder are called, where the reader takes a folder."""


def _fields(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(names.split()) for names in sets)


FORMATS: tuple[Format, ...] = (
    Format("native", "this project's own trace", read_trace, _fields("v session turn")),
    Format(
        "lmcache",
        "LMCache agent traces, one turn a line",
        read_lmcache,
        _fields("workload logged_input_tokens shared_prefix_tokens"),
        LmcacheSettings,
    ),
    Format(
        "weka",
        "Weka Claude Code traces, one request a line (sessions.jsonl beside it)",
        read_weka,
        _fields("agent gap_before_s shared_prefix_tokens"),
        WekaSettings,
    ),
    Format(
        "weka-files",
        "Weka Claude Code traces as published, a JSON file a session",
        read_weka_files,
        _fields("requests block_size hash_id_scope"),
        WekaSettings,
        folder="*.json",
    ),
    Format(
        "mini-swe-agent",
        "mini-swe-agent trajectories, ID.traj.json",
        read_mini_swe_agent,
        _fields("messages trajectory_format"),
        MiniSettings,
        folder="*.traj.json",
    ),
    Format(
        "atif",
        "Harbor's trajectory.json (ATIF), with result.json",
        read_atif,
        _fields("schema_version steps agent"),
        AtifSettings,
        folder="trajectory.json",
    ),
    Format(
        "claude-code",
        "Claude Code session logs, with their sub-agents",
        read_claude_code,
        _fields("type sessionId", "type leafUuid", "type messageId snapshot"),
        ClaudeCodeSettings,
        folder="*.jsonl",
    ),
    Format(
        "thunderagent",
        "ThunderAgent's step_profiles.csv",
        read_thunderagent,
        (frozenset(HEADER),),
        ThunderAgentSettings,
    ),
    Format(
        "bailian",
        "Alibaba Bailian requests (16-token block hashes)",
        read_bailian,
        _fields("chat_id parent_chat_id input_length"),
        BailianSettings,
    ),
    Format(
        "mooncake-sessions",
        "Mooncake rows with sessions: AIPerf, Dynamo, Dynamo agentic",
        read_mooncake_sessions,
        _fields(
            "session_id input_length output_length",
            "request_id wait_for input_length",
            "schema version block_size",
        ),
        MooncakeSessionSettings,
    ),
    Format(
        "mooncake",
        "Mooncake block-hash requests (512-token blocks)",
        read_mooncake,
        _fields("timestamp input_length output_length hash_ids"),
    ),
    Format(
        "tracelab",
        "TraceLab rounds of Claude Code and Codex",
        read_tracelab,
        _fields("session_id round_index input_tokens_total prefix_tokens"),
        TraceLabSettings,
    ),
    Format(
        "abench",
        "ABench sessions (abench-session-jsonl-v1)",
        read_abench,
        _fields("session_id turns system_prompt", "session_id turns source"),
        ABenchSettings,
        folder="*.jsonl",
    ),
    Format(
        "azure",
        "Azure LLM inference 2023, CSV of single requests",
        read_azure,
        _fields("TIMESTAMP ContextTokens GeneratedTokens"),
    ),
)


def format_names() -> tuple[str, ...]:
    """Names that `convert` accepts."""
    return tuple(entry.name for entry in FORMATS)


def format_with(keys: frozenset[str]) -> Format | None:
    """The first format that fields give away."""
    for entry in FORMATS:
        if any(each <= keys for each in entry.keys):
            return entry
    return None
