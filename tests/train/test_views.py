"""Random views of images: real pixels against a naive cut, in every executor, for every scheduler, after every stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor

from pipecycle import InputError, build, plan
from pipecycle.data import Augment, Task, Views
from pipecycle.data.augment import augmentation
from pipecycle.train.checkpoint import load_job, save_job
from pipecycle.train.engine import Engine, alike, train_many
from pipecycle.train.job import Job, Watch
from pipecycle.train.loop import Loop
from pipecycle.train.models import build as build_model
from pipecycle.train.models import flatten
from pipecycle.train.problems import Problem, Training, problem
from pipecycle.train.sessions import LocalSGD, Teachers, Trained
from pipecycle.train.stacked import Stacked
from pipecycle.train.views import Frame
from pipecycle.world.streams import streams
from tests.commands import end, pipecycle, process, until

CLASSES = 10


def photographs(side: int = 32, scale: str | None = "standard") -> Task:
    """Tiles of scikit-learn's two photographs as colour images; what is in them is for nobody to learn."""
    from sklearn.datasets import load_sample_images

    tiles = []
    for photograph in load_sample_images().images:
        for top in range(0, 160, side):
            tiles += [photograph[top : top + side, left : left + side] for left in range(0, 320, side)]
    x = np.stack(tiles).transpose(0, 3, 1, 2)
    y = np.arange(len(x)) % CLASSES
    return Task(x[20:], y[20:], x[:20], y[:20], classes=CLASSES, name="photographs", scale=scale)


def naive(image: np.ndarray, view: int, crop: int, black: tuple[float, ...]) -> np.ndarray:
    """One image pixel by pixel: the window at (top, left) of the framed image, then mirrored."""
    channels, height, width = image.shape
    place, mirrored = divmod(view, 2)
    top, left = divmod(place, 2 * crop + 1)
    window = np.empty_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                row, column = y + top - crop, x + left - crop
                inside = 0 <= row < height and 0 <= column < width
                window[c, y, x] = image[c, row, column] if inside else black[c % len(black)]
    return window[:, :, ::-1].copy() if mirrored else window


def all_naive(images: np.ndarray, views: np.ndarray, crop: int, black: tuple[float, ...]) -> np.ndarray:
    return np.stack([naive(image, int(view), crop, black) for image, view in zip(images, views, strict=True)])


@pytest.mark.parametrize("text", ["flip", "crop:1", "crop:4+flip", "crop:7"])
@pytest.mark.parametrize("data", ["digits", "photographs"])
def test_views_are_the_naive_ones_pixel_by_pixel(data: str, text: str) -> None:
    learnt = problem("digits" if data == "digits" else photographs(16), "mlp", clients=4, augment=text)
    augment, images = learnt.training.augment, learnt.task.x_train
    assert augment is not None
    index = np.arange(40)
    drawn = Views(augment, 0, 4, 10)([1], [2]).reshape(-1)
    expected = all_naive(images[index], drawn, augment.crop, learnt.task.black)
    frame, where = learnt.frame, torch.from_numpy(images).permute(0, 2, 3, 1)
    got = frame.cut(where, torch.from_numpy(index), torch.from_numpy(drawn), torch.tensor(frame.black))
    assert np.array_equal(got.permute(0, 3, 1, 2).numpy(), expected)
    # The frame is what a black pixel of the raw image became; digits have many of those.
    assert learnt.task.black == tuple(learnt.task.x_train.min((0, 2, 3)).tolist()) or data == "photographs"


class Sessions:
    """Some sessions on photographs: what executors take, and the same images augmented by hand beforehand."""

    def __init__(self, name: str, augment: str, count: int = 3, steps: int = 3, side: int = 16) -> None:
        task = photographs(side)
        made = augmentation(augment)
        assert made is not None
        self.augment, self.task, self.steps = made, task, steps
        self.frame = Frame(made.crop, task.black)
        self.module = build_model(name, task.shape, CLASSES, streams(3)("model").words(2))
        random = torch.Generator().manual_seed(count)
        self.images, self.labels = torch.from_numpy(task.x_train), torch.from_numpy(task.y_train)
        self.reference = flatten(self.module) * (1 + 0.1 * torch.rand(count, 1, generator=random))
        self.batches = torch.randint(len(self.labels), (count, steps, 5), generator=random)
        self.batches[0, :, 3:] = -1
        self.views = torch.from_numpy(Views(made, 0, steps, 5)(np.arange(count), np.arange(count)))
        logits = 3 * torch.randn(count, CLASSES, CLASSES, generator=random)
        self.teachers = Teachers(logits, torch.rand(count, CLASSES, generator=random) < 0.6, 0.3)

    def run(self, trainer: Loop | Stacked, **options: Any) -> Trained:
        options = {"teachers": self.teachers, "collect": True, "views": self.views} | options
        return trainer.run(self.reference, self.batches, **options)

    def by_hand(self, sgd: LocalSGD, dtype: torch.dtype = torch.float64) -> Trained:
        """Every place of every batch is an image of its own, augmented by the naive cut."""
        places = self.batches.clamp(min=0).reshape(-1)
        seen = all_naive(self.task.x_train[places], self.views.reshape(-1).numpy(), self.augment.crop, self.task.black)
        own = torch.arange(len(places)).reshape(self.batches.shape).masked_fill(self.batches < 0, -1)
        loop = Loop(self.module, torch.from_numpy(seen).to(dtype), self.labels[places], CLASSES, sgd)
        return loop.run(self.reference, own, teachers=self.teachers, collect=True)


def far(one: Trained, other: Trained) -> float:
    assert one.sums is not None
    assert other.sums is not None
    pairs = [(one.parameters, other.parameters), (one.sums, other.sums)]
    return max(float((a.cpu().double() - b.cpu().double()).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("augment", ["flip", "crop:2+flip"])
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_executors_train_on_what_the_naive_cut_shows(name: str, augment: str) -> None:
    sgd = LocalSGD(0.02, momentum=0.9)
    case = Sessions(name, augment)
    expected, exact = case.by_hand(sgd, torch.float32), case.by_hand(sgd)
    plain = (case.module, case.images, case.labels, CLASSES, sgd)
    assert torch.equal(case.run(Loop(*plain, frame=case.frame)).parameters, expected.parameters)
    wide = (case.module, case.images.double(), case.labels, CLASSES, sgd)
    for options in ({}, {"path": "module", "chunk": 2}):
        assert far(case.run(Stacked(*wide, frame=case.frame, **options)), exact) < 1e-9
        trainer = Stacked(*plain, frame=case.frame, **options)
        together = case.run(trainer)
        alone = trainer.run(case.reference[1:2], case.batches[1:2], views=case.views[1:2])
        few = trainer.run(case.reference, case.batches, views=case.views)
        assert torch.equal(alone.parameters, few.parameters[1:2])
        assert far(together, exact) < 1e-3
    assert far(case.run(Loop(*wide, frame=case.frame), views=None), exact) > 1e-3


def interpreted() -> None:
    """The kernels, run by Triton's interpreter on the CPU, against the loop."""
    from pipecycle.train.kernels_chain import layers
    from pipecycle.train.kernels_conv import ConvStack

    for augment, sgd in (("crop:3+flip", LocalSGD()), ("flip", LocalSGD(0.03, momentum=0.9, weight_decay=0.01))):
        case = Sessions("lenet", augment, count=2, steps=2)
        chain = layers(case.module)
        assert chain is not None
        trainer = Stacked(case.module, case.images, case.labels, CLASSES, sgd, path="module", frame=case.frame)
        trainer.path = "conv"
        trainer.conv = ConvStack(trainer, chain)
        got = case.run(trainer)
        assert far(got, case.by_hand(sgd)) < 1e-4
        plain = case.run(trainer, views=None)
        assert far(plain, got) > 1e-3
        # What was cut last is what the convolution would read of such images, unfolded beforehand.
        again = case.run(trainer)
        assert torch.equal(again.parameters, got.parameters)
        last = case.batches[:, -1].clamp(min=0).reshape(-1)
        views = case.views[:, -1].reshape(-1).numpy()
        seen = all_naive(case.task.x_train[last], views, case.augment.crop, case.task.black)
        whole = ConvStack(Stacked(case.module, torch.from_numpy(seen), case.labels, CLASSES), chain).unfolded
        assert torch.equal(trainer.conv.buffers["seen"][:2].reshape(whole.shape), whole)


@pytest.mark.triton
def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", "from tests.train.test_views import interpreted; interpreted()"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr


def gpu(test: Any) -> Any:
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(skip(test))


@gpu
@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn64"])
@pytest.mark.parametrize("augment", ["flip", "crop:4+flip"])
def test_the_device_trains_on_what_the_naive_cut_shows(name: str, augment: str) -> None:
    case = Sessions(name, augment, side=32)
    trainer = Stacked(case.module, case.images.cuda(), case.labels, CLASSES, frame=case.frame)
    assert trainer.path == ("layers" if name == "mlp" else "conv")
    assert far(case.run(trainer), case.by_hand(LocalSGD())) < 1e-3
    slow = Stacked(case.module, case.images.cuda(), case.labels, CLASSES, path="module", frame=case.frame)
    assert far(case.run(slow), case.by_hand(LocalSGD())) < 1e-3


@gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_the_device_cuts_the_naive_pixels_and_bits_stay_with_their_session(precision: Any) -> None:
    case = Sessions("cnn64", "crop:4+flip", count=200, steps=2, side=32)
    trainer = Stacked(case.module, case.images.cuda(), case.labels, CLASSES, precision=precision, frame=case.frame)
    few = {"teachers": None, "collect": False}
    plain = case.run(trainer, views=None, **few).parameters
    many = case.run(trainer, **few).parameters
    held = trainer.conv.buffers["seen"][:200].float().cpu()
    last = case.batches[:, -1].clamp(min=0)
    some = [0, 1, 77, 199]
    seen = np.concatenate([
        all_naive(case.task.x_train[last[m]], case.views[m, -1].numpy(), 4, case.task.black) for m in some
    ])  # fmt: skip
    whole = torch.zeros(len(seen), 32, 28, 16)
    for kx in range(5):
        whole[..., 3 * kx : 3 * kx + 3] = torch.from_numpy(seen)[..., kx : kx + 28].permute(0, 2, 3, 1)
    exact = whole.to(trainer.conv.dtype).float().reshape(len(some), 5, -1)
    assert torch.equal(held[some], exact)
    assert torch.equal(case.run(trainer, **few).parameters, many)
    for rows in (slice(0, 1), slice(77, 78), slice(150, 200)):
        got = trainer.run(case.reference[rows], case.batches[rows], views=case.views[rows]).parameters
        assert torch.equal(got, many[rows])
    # Sessions without views in between are what they are without any frame.
    assert torch.equal(case.run(trainer, views=None, **few).parameters, plain)
    frameless = Stacked(case.module, case.images.cuda(), case.labels, CLASSES, precision=precision)
    assert torch.equal(case.run(frameless, views=None, **few).parameters, plain)


def test_refused_before_anything_begins() -> None:
    flat = Task(np.ones((40, 6)), np.arange(40) % 2, np.ones((4, 6)), np.arange(4) % 2)
    with pytest.raises(InputError, match=r"augment = flip: samples have shape \(6,\), needs images"):
        problem(flat, clients=2, augment="flip")
    with pytest.raises(InputError, match=r"augment = crop:8: images have 8 x 8 pixels, needs a crop below 8"):
        problem("digits", clients=2, augment="crop:8")
    assert problem("digits", clients=2, augment="crop:7").training.augment == Augment(7)
    assert problem("digits", clients=2, augment="none").training.augment is None


# Whole runs.


@pytest.fixture(scope="module")
def learnt() -> Problem:
    return problem("digits", "lenet", clients=8, samples=30, scale="unit", augment="crop:2+flip")


def job_of(learnt: Problem, name: str = "pipecycle", slots: int = 120, **options: object) -> Job:
    return Job(plan(build(name, options), 0.5, clients=8, slots=slots, session=4), learnt, Watch(every=40))


def outcome(job: Job) -> tuple[str, bytes]:
    assert job.model is not None
    return job.history.csv(), job.model.numpy().tobytes()


def pixels(monkeypatch: pytest.MonkeyPatch, learnt: Problem, name: str) -> dict[tuple[int, int], list[Tensor]]:
    """What each session (client, k) of a run is shown, step by step, as the model itself meets it."""
    shown: list[list[Tensor]] = []
    real, session = Loop._gradients, Loop._session

    def gradients(self: Loop, x: Tensor, y: Tensor, table: Tensor | None) -> Any:
        shown[-1].append(x.clone())
        return real(self, x, y, table)

    def begin(self: Loop, *rest: Any) -> None:
        shown.append([])
        session(self, *rest)

    keys: list[tuple[int, int]] = []
    trained = Job.trained

    def remember(self: Job, sessions: list[int], *rest: Any) -> None:
        keys.extend((int(self.schedule.sessions.client[one]), int(self.numbers[one])) for one in sessions)
        trained(self, sessions, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_gradients", gradients)
        patched.setattr(Loop, "_session", begin)
        patched.setattr(Job, "trained", remember)
        train_many([job_of(learnt, name)], device="cpu", trainer="loop")
    return dict(zip(keys, shown, strict=True))


def test_two_schedulers_see_the_same_pixels_in_the_same_session(
    learnt: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pixels(monkeypatch, learnt, "pipecycle"), pixels(monkeypatch, learnt, "fedavg")
    both = one.keys() & other.keys()
    assert len(both) > 12
    for key in both:
        assert all(torch.equal(a, b) for a, b in zip(one[key], other[key], strict=True))
    plain = pixels(monkeypatch, evolve(learnt, training=Training()), "pipecycle")
    assert not any(torch.equal(plain[key][0], one[key][0]) for key in both)
    # They are the naive views of the client's own batches.
    client, k = max(both)
    batches, views = learnt.batches(4)([client], [k])[0], learnt.views(4)([client], [k])[0]  # type: ignore[misc]
    for step, shown in enumerate(one[client, k]):
        assert np.array_equal(shown.numpy(), all_naive(learnt.task.x_train[batches[step]], views[step], 2, (0.0,)))


def test_only_equal_augmentations_are_stacked_and_none_changes_a_run(learnt: Problem) -> None:
    flipped = evolve(learnt, training=evolve(learnt.training, augment="flip"))
    plain = evolve(learnt, training=Training())
    jobs = [job_of(one) for one in (learnt, flipped, learnt, plain)]
    assert [len(group) for group in alike(jobs)] == [2, 1, 1]
    train_many(jobs, device="cpu")
    alone = job_of(learnt)
    train_many([alone], device="cpu")
    assert outcome(jobs[0]) == outcome(jobs[2]) == outcome(alone)
    assert len({outcome(job) for job in jobs}) == 3


def test_evaluation_never_augments(learnt: Problem) -> None:
    """Models that do not move are looked at alike, whatever they were trained on."""
    still = [Training(LocalSGD(lr=1e-30), augment=augment) for augment in (None, "flip", "crop:3")]
    jobs = [job_of(evolve(learnt, training=training)) for training in still]
    train_many(jobs, device="cpu")
    assert len({job.history.csv() for job in jobs}) == 1


class Stop(Exception):
    pass


def test_stopped_and_resumed(learnt: Problem, tmp_path: Path) -> None:
    whole = job_of(learnt)
    train_many([whole], device="cpu", width=4)
    path, restarts = tmp_path / "state.safetensors", 0
    while True:
        job = job_of(learnt)
        if path.exists():
            load_job(job, path, "me", learnt.initial[:0])
        stacks = 0

        def save_and_stop(engine: Engine, job: Job = job) -> None:
            nonlocal stacks
            stacks += 1
            if stacks == 3:
                engine.settle()
                save_job(job, path, "me")
                raise Stop

        try:
            train_many([job], device="cpu", width=4, tick=save_and_stop)
            break
        except Stop:
            restarts += 1
    assert restarts > 2
    assert outcome(job) == outcome(whole)


@pytest.mark.slow
def test_a_killed_command_ends_with_the_same_bits(tmp_path: Path) -> None:
    command = ("run", "fedavg", "--clients", "30", "--slots", "160", "--model", "lenet", "--device", "cpu")
    command += ("--scale", "half", "--augment", "crop:1+flip", "--save-every", "0.05", "--out")
    assert pipecycle(*command, str(tmp_path / "whole")).returncode == 0
    folder = tmp_path / "killed"
    running = process(*command, str(folder), cwd=tmp_path)
    until((folder / "checkpoint" / "state.safetensors").exists, running)
    end(running, signal.SIGKILL)
    assert "Resumes from slot " in pipecycle(*command, str(folder)).stdout
    for name in ("config.toml", "metrics.csv", "model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    text = (folder / "config.toml").read_text()
    assert 'scale = "half"' in text
    assert 'augment = "crop:1+flip"' in text
