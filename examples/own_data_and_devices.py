"""Use your own data, and devices that differ: fast and slow ones, small and large batteries."""

# %% Any classification data in arrays. These are scikit-learn's wines, scaled here.
import numpy as np
from sklearn.datasets import load_wine

from pipecycle import Comparison, Costs, Task, Watch, plan, problem, train

x, y = load_wine(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = ((x - x.mean(0)) / x.std(0))[order], y[order]
wine = Task(x[:140], y[:140], x[140:], y[140:], name="wine")
learnt = problem(wine, "mlp", clients=10, alpha=0.5)
print(wine, learnt, sep="\n")

# %% Ten devices. The first half trains twice as fast, for twice the energy per slot; the others have small batteries.
fast = np.arange(10) < 5
session = np.where(fast, 10, 20)
devices = {
    "session": session,
    "costs": Costs(step=np.where(fast, 2.0, 1.0)),
    "capacity": np.where(fast, 200.0, 40.0),
    "samples": learnt.samples(session),  # an update counts by the samples behind it
}

# %% Plan and train two schedulers on these devices, and the better known one on equal devices.
world = {"harvest": 0.4, "clients": 10, "slots": 600}
watch = Watch(every=50, budget=1500)
runs = {
    "fedavg": train(plan("fedavg", **world, **devices), learnt, watch),
    "pipecycle+": train(plan("pipecycle+(groups=2)", **world, **devices), learnt, watch),
    "fedavg, equal devices": train(plan("fedavg", **world, samples=learnt.samples(20)), learnt, watch),
}
result = Comparison.of(runs)
print(result)
print(result.report("devices.html"))
