"""Every quantitative claim of the paper's abstract, contributions, results and conclusions, put to the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import frozen

from pipecycle.report.tables import TextTable
from pipecycle_paper import claims_curves as curves
from pipecycle_paper import claims_tables as tables
from pipecycle_paper.claims_tables import AMPLE, FUNCTIONAL, Source
from pipecycle_paper.grid import Grid
from pipecycle_paper.paper import CYCLIC, DELTAS, DISTRIBUTIONS, GROUPS
from pipecycle_paper.tables import trials
from pipecycle_paper.verdicts import Finding, untestable


@frozen
class Claim:
    """What the paper says, where, and the functions that look whether it is so."""

    section: str
    """Of the paper."""
    text: str
    """In our words, with the thresholds that we had to choose."""
    table: Callable[[Source], Finding] | None = None
    """For claims about the accuracies of the two tables: asked of our tables and of the paper's."""
    history: Callable[[Grid], Finding] | None = None
    """For claims that need more than the tables."""
    print_only: bool = False
    """About the print itself: our runs cannot say anything."""
    measured: bool = True
    """Whether the verdict rests on trained models, so that the number of trials matters."""

    def ours(self, grid: Grid) -> Finding:
        if self.history is not None:
            return self.history(grid)
        if self.print_only or self.table is None:
            return untestable("it is about how the paper's tables are printed")
        return self.table(grid.value)

    def own(self) -> Finding | None:
        """The paper's own tables about the claim."""
        return None if self.table is None else self.table(tables.printed)


CLAIMS: Mapping[str, Claim] = {
    "cheaper to target": Claim(
        "abstract, I",
        "PipeCycle reaches a target accuracy with substantially less energy than the baselines (here: at most 80 % of "
        "the best baseline's at 50, 55, 60, 65 %, every δ, both distributions, everybody at the best G)",
        history=curves.cheaper_to_target,
    ),
    "cyclic collapse": Claim(
        "abstract, I",
        "Under label skew the competing cyclic schemes (CyCP, FedSeq, FedBacys) collapse to near chance (here: below "
        "15 % in every non-IID cell)",
        partial(tables.near_chance, policies=CYCLIC, groups=GROUPS),
    ),
    "depth is bounded": Claim(
        "abstract, V, VII",
        "Staleness has a finite-horizon bound: no chain of aggregations is longer than floor(S / B)",
        history=curves.depth_is_bounded,
        measured=False,
    ),
    "lag is bounded": Claim(
        "App. A",
        "The reference of an aggregation comes from at most G aggregations before (τ - π(τ) ≤ G)",
        history=curves.lag_is_bounded,
        measured=False,
    ),
    "more groups start faster": Claim(
        "I",
        "More concurrent groups learn faster early on (here: slots until 40 % fall with G)",
        history=curves.more_groups_start_faster,
    ),
    "large settles lower": Claim(
        "I",
        "More groups settle at a less accurate point in the long run (accuracy falls with G)",
        partial(tables.ordered, where=DISTRIBUTIONS, deltas=DELTAS, rising=False),
    ),
    "best groups depend": Claim("I", "Which G is best depends on δ and on the distribution", tables.best_groups_depend),
    "direction of the analysis": Claim(
        "I",
        "... in the direction predicted by the analysis (here: the best G differs between δ where its G* does)",
        history=curves.direction_of_the_analysis,
    ),
    "isolated guess": Claim(
        "VI-A",
        "A client in isolation gets about 10 %, as by guessing (here: below 15 %)",
        history=curves.isolated_guess,
    ),
    "bold is best": Claim(
        "VI-C",
        "Bold figures are the best of their column (said of Table I; here: of both)",
        tables.bold_is_best,
        print_only=True,
    ),
    "highest iid": Claim(
        "VI-C",
        "IID: PipeCycle has the highest accuracy at every δ (each scheme at its best G)",
        partial(tables.leads, where="iid", deltas=DELTAS),
    ),
    "never drops": Claim(
        "VI-C",
        "IID: PipeCycle does not drop when G increases",
        partial(tables.ordered, where=["iid"], deltas=DELTAS, rising=True),
    ),
    "others drop": Claim("VI-C", "IID: every other grouped scheme does drop when G increases", tables.others_drop),
    "grouped break": Claim(
        "VI-C",
        "Non-IID: the grouped baselines break with larger G (here: at G = 5 and 10 below 15 %, or 10 points below "
        "G = 2)",
        tables.grouped_break,
    ),
    "functional to five": Claim(
        "VI-C",
        "Non-IID: PipeCycle remains functional at G = 5 for δ = 0.3, 0.5, 1 (here: at least 50 %)",
        partial(tables.keeps, groups=[5], deltas=AMPLE, limit=FUNCTIONAL),
    ),
    "degrades at ten": Claim(
        "VI-C",
        "Non-IID: PipeCycle degrades at G = 10 (δ = 0.3, 0.5, 1; against G = 5)",
        partial(tables.stays_ahead, where="non-iid", deltas=AMPLE, pairs=[(5, 10)]),
    ),
    "optimum ignores delta": Claim(
        "VI-C", "The G* of the analysis does not depend on δ", history=curves.optimum_ignores_delta, measured=False
    ),
    "events grow with groups": Claim(
        "VI-C",
        "Aggregations scale linearly with G whether energy or the pipeline limits them (here: within 10 %, IID)",
        history=curves.events_grow_with_groups,
        measured=False,
    ),
    "small wins when scarce": Claim(
        "VI-C",
        "At low δ a smaller G is better (δ = 0.1, both distributions: accuracy falls with G)",
        partial(tables.ordered, where=DISTRIBUTIONS, deltas=[0.1], rising=False),
    ),
    "two is best when scarce": Claim(
        "VI-C",
        "Non-IID, δ = 0.1: PipeCycle is best at G = 2",
        partial(tables.stays_ahead, where="non-iid", deltas=[0.1], pairs=[(2, 5), (2, 10)]),
    ),
    "gap narrows": Claim("VI-C", "Non-IID: at higher δ the gap between the values of G narrows", tables.gap_narrows),
    "clients highest iid": Claim(
        "VI-C",
        "IID, G = 2: PipeCycle has the highest final mean over all clients' models at every δ (here: final is where a "
        "run has spent the budget, which is at different slots)",
        history=partial(curves.clients_lead, where="iid", deltas=DELTAS),
    ),
    "larger is better iid": Claim(
        "VI-C",
        "IID: larger G gives PipeCycle higher accuracy than G = 2",
        partial(tables.stays_ahead, where="iid", deltas=DELTAS, pairs=[(5, 2), (10, 2)]),
    ),
    "two beats all iid": Claim(
        "VI-C",
        "IID: PipeCycle with G = 2 beats every baseline at its best G",
        partial(tables.leads, where="iid", deltas=DELTAS, groups=2),
    ),
    "pipecycle first": Claim(
        "VI-C",
        "IID, G = 2, δ ≥ 0.3: PipeCycle reaches 50 % slightly before FedSeq (mean over clients, slots)",
        history=curves.pipecycle_first,
    ),
    "fedseq first when scarce": Claim(
        "VI-C",
        "IID, G = 2, δ = 0.1: FedSeq reaches 50 % slightly before PipeCycle",
        history=curves.fedseq_first_when_scarce,
    ),
    "others lag": Claim(
        "VI-C", "IID, G = 2: the other baselines reach 50 % after both PipeCycle and FedSeq", history=curves.others_lag
    ),
    "highest noniid": Claim(
        "VI-C",
        "Non-IID, δ ≥ 0.3: PipeCycle with G = 2 has the highest accuracy of all (tables; baselines at their best G)",
        partial(tables.leads, where="non-iid", deltas=AMPLE, groups=2),
    ),
    "clients highest noniid": Claim(
        "VI-C",
        "Non-IID, G = 2, δ ≥ 0.3: PipeCycle has the highest final mean over all clients' models (here: where a run "
        "has spent the budget)",
        history=partial(curves.clients_lead, where="non-iid", deltas=AMPLE),
    ),
    "sixty at two": Claim(
        "VI-C",
        "Non-IID, G = 2, δ ≥ 0.3: PipeCycle keeps 60 % or more",
        partial(tables.keeps, groups=[2], deltas=AMPLE, limit=60.0),
    ),
    "degrade or collapse": Claim(
        "VI-C",
        "Non-IID: grouped baselines degrade with δ (G = 2) or collapse at larger G (here: G = 10 below 15 %)",
        tables.degrade_or_collapse,
    ),
    "collapse at ten": Claim(
        "VI-C",
        "Non-IID: FedSeq, CyCP and FedBacys collapse to about 10 % at G = 10 (here: below 15 %)",
        partial(tables.near_chance, policies=CYCLIC, groups=[10]),
    ),
    "keeps 45": Claim(
        "VI-C",
        "Non-IID: PipeCycle keeps 45 % or more at every G and δ",
        partial(tables.keeps, groups=GROUPS, deltas=DELTAS, limit=45.0),
    ),
    "slower when scarce": Claim(
        "VI-C",
        "Non-IID, δ = 0.1: PipeCycle (G = 2) needs more slots than FedAvg and FLDA to the same accuracy (here: mean "
        "over clients, 20, 30 ... 70 %, as far as one of them gets there)",
        history=curves.slower_when_scarce,
    ),
    "events stop growing": Claim(
        "VI-C",
        "δ = 0.1: aggregations no longer scale with G (here: at most a quarter more than with G = 2, IID)",
        history=curves.events_stop_growing,
        measured=False,
    ),
    "comparable to fedseq": Claim(
        "VI-C",
        "Non-IID, δ = 0.1, G = 2: PipeCycle is comparable to FedSeq (here: within 2 points)",
        tables.comparable_to_fedseq,
    ),
    "fedbacys fails": Claim(
        "VI-C",
        "Non-IID: FedBacys fails at every δ (here: below 15 % at every G)",
        partial(tables.near_chance, policies=["fedbacys"], groups=GROUPS),
    ),
    "relay is what helps": Claim(
        "VI-C",
        "The relay is what enables learning without IID data: FedBacys, which lacks it, fails (here: also when all its "
        "clients start from the newest model)",
        history=curves.relay_is_what_helps,
    ),
    "ahead at any budget": Claim(
        "VI-C",
        "δ = 0.5: at any budget PipeCycle is at least as accurate as the best baseline (here: twenty budgets, "
        "everybody at the best G)",
        history=curves.ahead_at_any_budget,
    ),
    "least for any target": Claim(
        "VI-C",
        "δ = 0.5: for any target PipeCycle spends the least (here: 30 to 70 %, as far as anybody gets there)",
        history=curves.least_for_any_target,
    ),
    "gap widens": Claim(
        "VI-C",
        "δ = 0.5: the saving is larger without IID data (share of the best baseline's energy, same targets)",
        history=curves.gap_widens,
    ),
    "half the energy to 65": Claim(
        "VI-C",
        "Non-IID, δ = 0.5: PipeCycle reaches 65 % with about half the best baseline's energy (here: at most 60 %)",
        tables.reaches_65,
        curves.half_the_energy_to_65,
    ),
    "better than harvesting": Claim(
        "VII",
        "More accuracy per energy than the other schemes for harvested energy (FedSeq, FLDA, FedBacys; at the budget, "
        "best G, both distributions)",
        history=curves.better_than_harvesting,
    ),
}


def examine(grid: Grid) -> list[tuple[Claim, Finding, Finding | None]]:
    """Every claim with what our results say and what the paper's own tables say."""
    return [(claim, claim.ours(grid), claim.own()) for claim in CLAIMS.values()]


def claims_table(grid: Grid, examined: Sequence[tuple[Claim, Finding, Finding | None]]) -> TextTable:
    few = f" ({trials(grid)})" if 0 < grid.trials[0] < 3 else ""
    body = []
    for number, (claim, finding, own) in enumerate(examined, 1):
        printed = "-"
        if own is not None:
            printed = own.verdict if own.verdict == "holds" else f"{own.verdict}: {own.figure}"
        why = finding.why + (few if finding.verdict != "cannot be tested" and claim.measured else "")
        body.append((str(number), claim.text, claim.section, finding.figure, finding.words, why, printed))
    head = ("No.", "Claim", "Section", "Our figure", "Verdict", "Why", "The paper's own tables")
    return TextTable(f"Claims of the paper, against {trials(grid)} of ours", head, tuple(body))
