"""Compare schedulers: which one buys the most accuracy with the same energy?

Run it as a script, or cell by cell in an editor that knows `# %%`."""

# %% Four schedulers on the same two trials: the same weather, the same data, the same batches.
from pipecycle import compare
from pipecycle.runs.compare import DEMO

base = DEMO.changed({"world.clients": 20, "world.slots": 500, "world.budget": 2000.0})
result = compare(["fedavg", "mifa", "pipecycle", "pipecycle+"], trials=2, groups=2, base=base)
print(result)  # a notebook shows the table, the curves and what to make of them: result

# %% In sentences, with the notes that one should read before believing a difference.
print(result.summary())

# %% Every evaluation as a pandas DataFrame.
frame = result.frame()
last = frame[frame["budget"]].groupby("scheduler")[["accuracy", "energy"]].mean()
print(last.round(1))

# %% A figure for a paper, and the whole story as one HTML page.
result.plot("accuracy_energy").savefig("accuracy.pdf")
print(result.report("compare.html"))
