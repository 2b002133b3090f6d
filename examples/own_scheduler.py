"""Write a scheduler, look at its plan before anything is trained, and compare it with others."""

# %% A scheduler decides who trains when, and from which model. This one asks the fullest batteries.
from attrs import define, field

from pipecycle import Comparison, Watch, plan, problem, train
from pipecycle.checks import at_least


@define(slots=False, eq=False)
class Fullest:
    """Every few slots, the clients with the fullest batteries train the server's model."""

    name = "fullest"
    grouping = "launch"  # a group: the clients that start together

    size: int = field(default=4, validator=at_least(1, "client"))
    """Clients that start together."""
    period: int = field(default=10, validator=at_least(1, "slot"))
    """Slots between two starts."""

    def setup(self, world):
        self.fleet, self.lineage = world.fleet, world.lineage
        self.need = self.fleet.to_train + self.fleet.to_server

    def decide(self, slot):
        senders = self.fleet.unsent(self.fleet.to_server)
        if len(senders):
            updates = self.fleet.send(senders, "server")
            if len(updates):  # none if links fail
                self.lineage.publish(self.lineage.mean(self.lineage.published, updates))
        ready = self.fleet.free(self.need)
        if slot % self.period == 0 and len(ready):
            order = self.fleet.level[ready].argsort(kind="stable")[::-1]
            self.fleet.start(ready[order[: self.size]], self.lineage.published, self.need)

    def collect(self, slot, done, lost):
        """Clients that have finished send in the next slot."""


# %% The plan: how much energy it spends, on what, and how often clients take part.
world = {"harvest": 0.3, "clients": 20, "slots": 600}
schedule = plan(Fullest(size=3), **world)
print(schedule.summary())

# %% Train it and PipeCycle+ on the same data, and compare.
learnt = problem("digits", clients=20, alpha=0.1)
histories = [
    train(schedule, learnt, Watch(every=50)),
    train(plan("pipecycle+(groups=2)", **world), learnt, Watch(every=50)),
]
result = Comparison.of(histories)
print(result)
print(result.report("own_scheduler.html"))
