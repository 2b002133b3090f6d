"""Read a schedule: what a scheduler decided, before anything is trained."""

# %% A schedule is a record. A notebook draws it; a terminal gets the same as text.
from pipecycle import Schedule, plan

schedule = plan("pipecycle(groups=4)", harvest="markov:0.3,12", clients=40, slots=2000)
print(schedule.summary())

# %% Questions that it answers.
print("fleet has spent 5,000 units in slot", schedule.budget_slot(5000))
print("fairness", round(schedule.fairness(), 3), "and sessions wasted", schedule.wasted())
for number, chain in enumerate(schedule.ancestry.chains[:4]):
    print(f"chain {number}: {chain.depth} aggregations deep, has met {chain.coverage} clients")

# %% One row per session, as a pandas DataFrame.
sessions = schedule.frame()
print(sessions.head())
print(sessions.groupby("status")["energy"].sum())

# %% Pictures: the pipeline, the batteries, how often clients took part.
for kind in ("pipeline", "battery", "participation"):
    schedule.plot(kind).savefig(f"{kind}.png", dpi=150)

# %% Files: the same bytes for the same schedule.
schedule.save("plan.npz")
assert Schedule.load("plan.npz") == schedule
other = plan("pipecycle(groups=4, rotation=spread)", harvest="markov:0.3,12", clients=40, slots=2000)
print("differs in", ", ".join(schedule.differences(other)[:4]), "...")
