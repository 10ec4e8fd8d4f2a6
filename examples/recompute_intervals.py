"""Recomputes the differences in the main table: python recompute_intervals.py runs/NAME."""

import sys
from statistics import NormalDist

import numpy as np

from agentsched import load_run

BETTER = {"latency_mean": -1, "ttft_mean": -1, "decode_tps": 1, "cache_hit": 1}
STUDENT = {2: 12.7062, 3: 4.30265, 4: 3.18245, 5: 2.77645, 10: 2.26216, 20: 2.09302}  # by seeds
cells = load_run(sys.argv[1]).cells.query("status == 'done'")
print("cell_workload,workers,scheduler,metric,low,high")
for (workload, workers), group in cells.groupby(["cell_workload", "workers"], sort=False):
    for tag, sign in BETTER.items():
        values = group.pivot(index="seed", columns="scheduler", values=tag)
        n = len(values)
        draws = np.random.Generator(np.random.PCG64(20261130)).integers(0, n, (10_000, n))
        means = sign * values.to_numpy()[draws].mean(axis=1)  # of each resample and scheduler
        tail = 100 * NormalDist().cdf(-((n / (n - 1)) ** 0.5) * STUDENT[n])
        for place, name in enumerate(values):
            best = np.delete(means, place, axis=1).max(axis=1)
            gain = 100 * (means[:, place] - best) / abs(best)
            print(workload, workers, name, tag, *np.percentile(gain, [tail, 100 - tail]), sep=",")
