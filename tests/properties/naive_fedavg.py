"""FedAvg in the field, written again from docs/links.md and docs/schedulers/fedavg.md: one client at a time, in plain
integers, with random numbers of its own making.  Slow, and nothing of the package's world is used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

COLUMNS = ("harvested", "overflowed", "training", "to_server", "download", "lost", "idle", "leaked")
LOW = 0xFFFFFFFF


def quanta(units: float) -> int:
    return ceil(Fraction(float(units)) * 2**20)


class Chance:
    """Numbers from 0 to below 1: Philox4x32-10 (Salmon et al. 2011) of a pair, its key a digest of a name."""

    def __init__(self, name: str) -> None:
        digest = hashlib.shake_128(name.encode()).digest(8)
        self.key = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def __call__(self, client: int, count: int) -> tuple[float, float]:
        (key, other), (a, b, c, d) = self.key, (client, count, 0, 0)
        for _ in range(10):
            left, right = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = (right >> 32) ^ b ^ key, right & LOW, (left >> 32) ^ d ^ other, left & LOW
            key, other = (key + 0x9E3779B9) & LOW, (other + 0xBB67AE85) & LOW
        return ((a << 32 | b) >> 11) / 2**53, ((c << 32 | d) >> 11) / 2**53


class Client:
    def __init__(self, number: int, world: Mapping[str, Any], trial: int) -> None:
        self.number, self.doing, self.session, self.done = number, "nothing", -1, 0
        self.sent = self.started = 0
        self.breaks: int | None = None
        """The step in which the session fails."""
        own = {key: value[number % len(value)] for key, value in world["devices"].items()}
        energies = ("step", "to_server", "download", "idle", "leak", "capacity", "initial")
        self.costs = {key: quanta(own[key]) for key in energies}
        self.length, self.loss, self.failure = own["session"], own["loss"], own["failure"]
        self.period, self.open = own["period"], ceil(own["share"] * own["period"])
        phase = Chance(f"{trial}/contact/()")(number, 0)[0]
        self.phase = int(phase * self.period) if self.period > 1 else 0
        self.windows = [(first, last) for client, first, last in world["windows"] if client == number]
        self.level = self.costs["initial"]

    def in_contact(self, slot: int, period: int | None) -> bool:
        now = slot if period is None else slot % period
        listed = not self.windows or any(first <= now <= last for first, last in self.windows)
        return listed and (slot + self.phase) % self.period < self.open


def fedavg(weather: Sequence[Sequence[int]], world: Mapping[str, Any], trial: int) -> dict[str, Any]:
    """The ledger at the end of every slot, what is left, how many sessions there were and when the server moved."""
    clients = [Client(number, world, trial) for number in range(len(weather[0]))]
    lossy, failing = Chance(f"{trial}/loss/(0,)"), Chance(f"{trial}/failure/()")
    epoch = max(30, -(-3 * max(client.length for client in clients) // 2))
    book = dict.fromkeys(COLUMNS, 0)
    book["harvested"] = sum(client.level for client in clients)
    sessions, arrived = 0, 0
    rows: list[dict[str, int]] = []
    published: list[int] = []

    def pay(client: Client, column: str, amount: int) -> None:
        client.level -= amount
        book[column] += amount

    for slot, gains in enumerate(weather):
        for client, gain in zip(clients, gains, strict=True):
            client.level += int(gain)
            book["harvested"] += int(gain)
            pay(client, "overflowed", max(0, client.level - client.costs["capacity"]))

        # Those who have something to send, can pay and are in contact, as many as there are channels.
        waiting = [client for client in clients if client.doing == "waits"]
        able = [client for client in waiting if client.level >= client.costs["to_server"]]
        able = [client for client in able if client.in_contact(slot, world["windows_period"])]
        senders = sorted(able, key=lambda client: client.session)[: world["channels"]]
        for client in senders:
            cost, chance, tries = client.costs["to_server"], 1.0, 0
            drawn = lossy(client.number, client.sent)[0]
            client.sent, client.doing = client.sent + 1, "sends"
            while tries < world["tries"] and client.level >= cost:
                tries, chance = tries + 1, chance * client.loss
                if drawn >= chance:
                    pay(client, "to_server", cost)
                    arrived += 1
                    break
                pay(client, "lost", cost)

        for client in clients:
            costs = client.costs
            price = client.length * (costs["step"] + costs["leak"]) + costs["download"]
            if client.doing == "nothing" and client.level >= price:
                whether, when = failing(client.number, client.started)
                client.breaks = int(when * client.length) if whether < client.failure else None
                client.started, client.doing, client.session, client.done = client.started + 1, "trains", sessions, 0
                sessions += 1
                pay(client, "download" if client.breaks is None else "lost", costs["download"])

        for client in clients:
            costs = client.costs
            if client.doing == "trains":
                pay(client, "training" if client.breaks is None else "lost", costs["step"])
                pay(client, "leaked", costs["leak"])
                if client.done == client.breaks:
                    client.doing = "nothing"
                client.done += 1
                if client.doing == "trains" and client.done == client.length:
                    client.doing = "waits"
                continue
            pay(client, "leaked", min(client.level, costs["leak"]))
            if client.doing == "sends":
                client.doing = "nothing"
            else:
                pay(client, "idle", min(client.level, costs["idle"]))

        if slot % epoch == epoch - 1 and arrived:
            published.append(slot)
            arrived = 0
        rows.append(dict(book))
    return {"rows": rows, "level": [c.level for c in clients], "sessions": sessions, "published": published}
