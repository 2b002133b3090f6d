"""Compare schedulers: which one buys the most accuracy with the same energy?

Run it as a script, or cell by cell in an editor that knows `# %%`."""

# %% Four schedulers on the same two trials: the same weather, the same data, the same batches.
from pipecycle import compare

schedulers = ["fedavg", "pipecycle(groups=2)", "pipecycle(groups=5)", "pipecycle+(groups=2)"]
result = compare(schedulers, trials=2, clients=20, slots=500, budget=2000)
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
