"""Recomputes the main table from the records of a run: python recompute.py runs/NAME."""

import sys

from agentsched import load_run

run = load_run(sys.argv[1])
keys = ["cell_workload", "workers", "scheduler", "seed"]
turns = run.turns[run.turns["status"] == "ok"].set_index(keys)
tasks = run.sessions[(run.sessions["status"] == "finished") & run.sessions["parent"].isna()]
tasks = tasks.set_index(keys)
known = turns[turns["cached_tokens"].notna()].groupby(keys)

table = run.cells[run.cells["status"] == "done"].set_index(keys)[["makespan_s"]]
table["latency_mean"] = (tasks["finished"] - tasks["started"]).groupby(keys).mean() / 1e9
table["ttft_mean"] = (turns["first_token"] - turns["arrived"]).groupby(keys).mean() / 1e9
table["decode_tps"] = turns["output_tokens"].groupby(keys).sum() / table["makespan_s"]
table["cache_hit"] = 100 * known["cached_tokens"].sum() / known["prompt_tokens"].sum()
table["pause_wait_mean"] = (turns["dispatched"] - turns["arrived"]).groupby(keys).mean() / 1e9
print(table.drop(columns="makespan_s").groupby(keys[:-1], sort=False).mean().to_csv(), end="")
